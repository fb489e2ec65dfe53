"""What Warpsmith raises. Each message is one line: what was wrong, what was expected, the remedy.

A candidate's failure is never one of these: it is an `Evaluation` with a `Status`.
"""


def install(extra: str) -> str:
    """The remedy where an optional package is missing: the command that brings it."""
    return f"pip install -e '.[{extra}]' in Warpsmith's checkout"


def unread(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file could not be read, without its name."""
    return str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8 text"


class WarpsmithError(Exception):
    """Base of all our errors; the CLI prints its message and exits with a non-zero code."""


class ConfigError(WarpsmithError):
    """A configuration, argument or file the user gave cannot be used."""


class TaskError(WarpsmithError):
    """A task is unknown, or its reference does not honour KernelBench's contract."""


class DeviceError(WarpsmithError):
    """The device, driver or compiler that a call needs is missing or unusable."""


class Crowded(DeviceError):
    """A candidate lacked memory of a device while idle workers may have had it."""


class InvalidReference(WarpsmithError):
    """The task itself cannot be scored: failing, stochastic, constant or data-dependent
    reference.
    """


class SandboxFault(WarpsmithError):
    """Our machinery failed, not the candidate: retried, reported, never scored."""


class Shortage(SandboxFault):
    """The device had no room left for a task that is prepared."""
