"""A repository for Hugging Face's `kernels` library (0.17): `get_local_kernel`, `kernelize`.

DIR/build/torch-cpu/    the kernels of one device: the package's modules, library.json, layers.py
DIR/build/torch-cuda/   and metadata.json
DIR/artefacts, pages    as in the package; DIR/README.md, DIR/manifest.json

Variants without an architecture in their name: kernels are sources (and cubins) that one build
serves for every torch. `layers.py` has a layer per operator, for modules like its reference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from agent.export.artefact import Artefact, Gathered, Nothing, against_best, decisive
from agent.export.folder import check_folder, staged
from agent.export.manifest import write_manifest
from agent.export.package import check_name, renewed, write_root
from agent.export.runtime.machine import machine_of
from sandbox.errors import ConfigError
from sandbox.types import digest

OWNED = ("build", "artefacts", "pages")
MINVER = "0.17.0"
INIT = '''"""{about}"""

from pathlib import Path as _Path

from .runtime.library import KernelLibrary as _KernelLibrary
from .runtime.records import LibraryError

library = _KernelLibrary(_Path(__file__).parent)
names, operator, layer = library.names, library.operator, library.layer
switch, counts, table = library.switch, library.counts, library.table
patch, unpatch = library.patch, library.unpatch

from . import layers  # its classes need the library

__all__ = [
    *("LibraryError", "counts", "layer", "layers", "library", "names", "operator"),
    *("patch", "switch", "table", "unpatch"),
]
'''
LAYERS = '''"""A layer per operator: `kernelize` puts its forward under a user's modules."""

from torch import nn

from . import library
from .runtime.hosts import Host
'''
LAYER = """
_{name} = Host(library.operator("{name}"), {facts})


class {kind}(nn.Module):
    has_backward = {backward}
    can_torch_compile = True

    def forward(self, {inputs}):
        return _{name}(self, {inputs})
"""


def export_hub(
    gathered: Gathered, folder: Path, package: str, archs: Sequence[str] = ()
) -> list[Path]:
    """Write the repository; returns the variants' folders, then the manifest.

    Raises ConfigError where the name or the folder cannot be used, or nothing can be exported.
    """
    check_name(package)
    check_folder(folder, "kernels")
    if not gathered.artefacts:
        why = "; ".join(f"{task}: {reason}" for task, reason in gathered.left_out)
        raise Nothing(f"nothing to put in a repository: {why or 'the runs have no wins'}")
    ordered = sorted(gathered.artefacts, key=lambda a: (a.task.device, a.operator, a.candidate.id))
    try:
        with staged(folder, OWNED) as stage:
            paths = _write(ordered, dict(gathered.left_out), stage, package, archs)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return [folder / path.relative_to(stage) for path in paths]


def layer_name(operator: str) -> str:
    """`bias_relu` becomes `BiasRelu`."""
    return "".join(word.capitalize() for word in operator.split("_"))


def _write(
    artefacts: Sequence[Artefact],
    left_out: dict[str, str],
    folder: Path,
    package: str,
    archs: Sequence[str],
) -> list[Path]:
    version = renewed(folder, OWNED, artefacts, None)
    variants: list[Path] = []
    without: dict[str, str] = {}
    missing: dict[str, list[str]] = {}
    for device, group in groupby(artefacts, key=lambda a: a.task.device):
        root = folder / "build" / f"torch-{device}"
        unlike, uncompiled = _variant(list(group), root, package, version, archs)
        without, missing = without | unlike, missing | uncompiled
        variants.append(root)
    (folder / "README.md").write_text(_card(artefacts, package, without))
    facts_of = {
        "repository": package.replace("_", "-"),
        "version": version,
        "left_out": left_out,
        "without_layer": without,
        "without_binaries": missing,
    }
    return [*variants, write_manifest(folder, facts_of, artefacts)]


def _variant(
    artefacts: Sequence[Artefact], root: Path, package: str, version: str, archs: Sequence[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Writes one; returns why operators have no layer, and why kernels have no binaries."""
    device = artefacts[0].task.device
    root.mkdir(parents=True)
    names = list(dict.fromkeys(a.operator for a in artefacts))
    about = f"Tuned kernels for PyTorch: {', '.join(names)}"[:200]
    without: dict[str, str] = {}
    text = LAYERS
    for name in names:
        first = next(a for a in artefacts if a.operator == name)
        if first.interface.facts is None:
            without[name] = first.interface.unlike
            continue
        text += "\n" + LAYER.format(
            name=name,
            kind=layer_name(name),
            facts=first.interface.facts,
            inputs=", ".join(n for n, _ in first.interface.inputs),
            backward=first.interface.autograd != "none",
        )
    identity = f"_{package}_{device}_{digest([version, device])[:10]}"
    (root / "__init__.py").write_text(INIT.format(about=about))
    (root / "layers.py").write_text(text)
    licences = sorted({a.licence for a in artefacts} - {"unknown"})
    metadata = {
        "name": package.replace("_", "-"),
        "id": identity,
        "version": 1,
        "license": " AND ".join(licences) or "unknown",
        "python-depends": [],
        "backend": {"type": device},
        "kernels-minver": MINVER,
    }
    (root / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    missing = write_root(artefacts, root, identity, package, version, archs)
    return without, missing


def _card(artefacts: Sequence[Artefact], package: str, without: dict[str, str]) -> str:
    rows = "".join(
        f"| `{a.operator}` | {'-' if a.operator in without else f'`{layer_name(a.operator)}`'} "
        f"| {a.task.device} | {machine_of(decisive(a).environment)} | {decisive(a).speedup} "
        f"| {against_best(decisive(a))} |\n"
        for a in artefacts
    )
    return (
        f"# {package.replace('_', '-')}\n\nTuned kernels for PyTorch, for the `kernels` library. "
        "A kernel runs where it was measured and won; everything else is the PyTorch reference. "
        f"With `{package.upper()}_AGAINST=eager` kernels run too that are faster than eager alone."
        "\n\n"
        "```python\nfrom pathlib import Path\nfrom kernels import get_local_kernel\n\n"
        'kernel = get_local_kernel(Path("."))\nprint(kernel.table())\n```\n\n'
        "| operator | layer | device | measured on | against eager | against the best baseline |\n"
        f"|---|---|---|---|---|---|\n{rows}"
    )
