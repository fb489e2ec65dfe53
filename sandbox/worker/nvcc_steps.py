"""nvcc's own steps of one source, those of the host beside those of the device.

    python nvcc_steps.py NVCC ARGUMENTS...
    python nvcc_steps.py --preprocess NVCC ARGUMENTS...

nvcc takes them one after the other. The host's half (gcc's preprocessor, cudafe++) and the device's
(another, cicc, ptxas, fatbinary) need nothing of each other but a name of the module, which only
has to be its own: cudafe++ makes one, and here it is there before both. What is run is what
`nvcc --dryrun` lists; where that is not as expected, nvcc runs as it is. With --preprocess it is
the preprocessors alone, whose texts are printed, with a line #pass between two. Needs no package:
ninja starts it once a source.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

_LINE = re.compile(r"#\$ (.*)")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)")
_WRITTEN = re.compile(r' -o "([^"]+)"')
_MAKES_NAME = "--gen_module_id_file "
_NAME = re.compile(r'--module_id_file_name "([^"]+)"')


@dataclass(frozen=True)
class Steps:
    """Command lines for a shell."""

    variables: dict[str, str]
    host: tuple[str, ...]
    device: tuple[str, ...]
    last: str
    """Compiles what the host's half wrote, with the device's code in it."""
    name: Path
    """File that holds the module's name."""


def listed(dryrun: str) -> Steps | None:
    """From what nvcc says it would do; None where that is not one source's compilation."""
    variables: dict[str, str] = {}
    commands = []
    for line in _LINE.findall(dryrun):
        if found := _VARIABLE.fullmatch(line):
            variables[found[1]] = found[2].strip()
        elif not line.startswith("rm "):
            commands.append(line)
    front = [n for n, command in enumerate(commands) if command.startswith("cudafe++ ")]
    if front != [1] or _MAKES_NAME not in commands[1] or len(commands) < 7:
        return None
    written = re.search(r'--gen_c_file_name "([^"]+)"', commands[1])
    names = {name for command in commands for name in _NAME.findall(command)}
    if written is None or f'"{written[1]}"' not in commands[-1] or len(names) != 1:
        return None
    host = (commands[0], commands[1].replace(_MAKES_NAME, ""))
    return Steps(variables, host, tuple(commands[2:-1]), commands[-1], Path(names.pop()))


@dataclass(frozen=True)
class Printed:
    """Of a row of commands: the status of the last that ran, and all that was said."""

    status: int
    said: str


def taken(commands: Sequence[str], environment: Mapping[str, str]) -> Printed:
    """One after the other, to the first that fails."""
    said = []
    for line in commands:
        done = subprocess.run(
            line,
            shell=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        said.append(done.stdout)
        if done.returncode != 0:
            return Printed(done.returncode, "".join(said))
    return Printed(0, "".join(said))


@contextmanager
def planned(nvcc: Sequence[str]) -> Iterator[tuple[Steps | None, dict[str, str]]]:
    """What this command would do, and the environment for it, with a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder}
        command = [nvcc[0], "--dryrun", *nvcc[1:]]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        steps = listed(said.stderr) if said.returncode == 0 else None
        yield steps, environment | (steps.variables if steps else {})


def compiled(nvcc: Sequence[str]) -> int:
    """The exit status of this nvcc command, whose steps were taken side by side; it has said what
    nvcc says, which ends with the host's half where that fails.
    """
    with planned(nvcc) as (steps, environment):
        if steps is None:
            return subprocess.run(nvcc, check=False).returncode
        name = sha256(shlex.join([os.getcwd(), *nvcc]).encode()).hexdigest()[:16]
        steps.name.write_text(f"_{name}")
        with ThreadPoolExecutor(2) as pool:
            rows = (steps.host, steps.device)
            found = list(pool.map(lambda row: taken(row, environment), rows))
        if not any(half.status for half in found):
            found.append(taken([steps.last], environment))
        for half in found:
            sys.stderr.write(half.said)
            if half.status:
                return half.status
    return 0


def preprocessed(nvcc: Sequence[str]) -> int:
    """Print what this nvcc command would compile, for the host and for each device; 0 if it did."""
    with planned(nvcc) as (steps, environment):
        commands = [c for c in (*steps.host, *steps.device) if " -E " in c] if steps else []
        written = [_WRITTEN.search(command) for command in commands]
        if not commands or not all(written):
            return 1
        with ThreadPoolExecutor(len(commands)) as pool:
            if any(r.status for r in pool.map(lambda c: taken([c], environment), commands)):
                return 1
        texts = (Path(match[1]).read_text(errors="replace") for match in written if match)
        sys.stdout.write("\n#pass\n".join(texts))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--preprocess":
        sys.exit(preprocessed(sys.argv[2:]))
    sys.exit(compiled(sys.argv[1:]))
