"""nvcc's own steps of one source, those of the host beside those of the device.

    python nvcc_steps.py NVCC ARGUMENTS...

nvcc takes them one after the other. The host's half (gcc's preprocessor, cudafe++) and the device's
(another, cicc, ptxas, fatbinary) need nothing of each other but a name of the module, which only
has to be its own: cudafe++ makes one, and here it is there before both. What is run is what
`nvcc --dryrun` lists; where that is not as expected, nvcc runs as it is. Needs no package: ninja
starts it once a source.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

_LINE = re.compile(r"#\$ (.*)")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)")
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


def compiled(nvcc: Sequence[str]) -> int:
    """The exit status of this nvcc command, whose steps were taken side by side."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder}
        command = [nvcc[0], "--dryrun", *nvcc[1:]]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        steps = listed(said.stderr) if said.returncode == 0 else None
        if steps is None:
            return subprocess.run(nvcc, check=False).returncode
        environment |= steps.variables
        name = sha256(shlex.join([os.getcwd(), *nvcc]).encode()).hexdigest()[:16]
        steps.name.write_text(f"_{name}")

        def taken(commands: Sequence[str]) -> int:
            for line in commands:
                status = subprocess.run(line, shell=True, env=environment, check=False).returncode
                if status != 0:
                    return status
            return 0

        with ThreadPoolExecutor(2) as pool:
            failed = [status for status in pool.map(taken, (steps.host, steps.device)) if status]
        return failed[0] if failed else taken([steps.last])


if __name__ == "__main__":
    sys.exit(compiled(sys.argv[1:]))
