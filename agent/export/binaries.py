"""Device sources of `cuda` kernels, found in their text, and compiled ahead of time by NVRTC.

Only what can be read without running the text is found: constants, concatenations, f-strings and
`format` or `replace` of them. A kernel whose source is put together otherwise is shipped without
binaries, and NVRTC compiles it where it is used.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.export.artefact import Artefact
from agent.export.inline.convert import BACKENDS, SUPPORTED, uses
from agent.export.runtime.nvrtc import NvrtcError, compile_cubin, library, target_of
from agent.export.runtime.raw import source_key
from sandbox.errors import ConfigError
from sandbox.types import Language

LAUNCHING = {
    ".".join(part)
    for part in (
        ("cuda", "api"), ("cuda", "api", "driver"), ("cuda", "api", "driver", "launchKernel"),
    )
}  # fmt: skip
"""What the runtime has of cupy's back end."""
LACKING = {
    "attributes", "num_regs", "max_threads_per_block", "get_global", "const_size_bytes",
    "local_size_bytes", "shared_size_bytes", "ptx_version", "binary_version", "cache_mode_ca",
}  # fmt: skip
"""Attributes of cupy's kernels and modules that the runtime's have not."""
METHODS = ("format", "replace", "join", "strip", "lstrip", "rstrip")


class Unknown(Exception):
    """An expression whose value the text alone does not tell."""


@dataclass(frozen=True)
class DeviceSource:
    """The arguments of one `RawModule` or `RawKernel`."""

    code: str
    options: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return source_key(self.code, self.options, self.expressions)


@dataclass(frozen=True)
class Compiled:
    """Records for `library.json`, and what could not be compiled ahead, by architecture."""

    records: tuple[dict[str, Any], ...] = ()
    missing: tuple[str, ...] = ()


def binding_of(artefact: Artefact) -> str:
    """`driver` where the runtime can stand for cupy, else `cupy`."""
    if artefact.candidate.language is not Language.CUDA:
        return "cupy"
    tree = ast.parse(artefact.candidate.source)
    more = set(uses(tree)) - SUPPORTED or set(uses(tree, BACKENDS)) - LAUNCHING
    lacking = any(isinstance(n, ast.Attribute) and n.attr in LACKING for n in ast.walk(tree))
    return "cupy" if more or lacking else "driver"


def architectures(artefact: Artefact, more: Sequence[str]) -> list[str]:
    """Those of the GPUs it was measured on, and those that were asked for."""
    measured = (f.evaluation.environment.get("arch") for f in artefact.findings)
    return sorted({*(a for a in measured if a is not None and a.startswith("sm_")), *more})


def refuse_unknown(arch: str) -> None:
    """Raises ConfigError where NVRTC is here and compiles nothing for the architecture."""
    try:
        nvrtc = library()
    except NvrtcError:
        return  # The manifest tells what has no binaries.
    try:
        compile_cubin("", (), arch)
    except NvrtcError as error:
        count = ctypes.c_int()
        nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        nvrtc.nvrtcGetSupportedArchs(known)
        names = ", ".join(f"sm_{number}" for number in known)
        raise ConfigError(
            f"architecture is {arch!r}, which the NVRTC here does not know; expected one of "
            f"{names}, of the later ones also such as sm_90a"
        ) from error


def compile_ahead(artefact: Artefact, archs: Sequence[str], root: Path) -> Compiled:
    """Writes `kernels/NAME.ARCH.cubin` under the root."""
    if binding_of(artefact) != "driver":
        return Compiled()
    try:
        sources = list(device_sources(artefact.candidate.source))
    except Unknown as error:
        return Compiled(missing=(f"its device source is not a constant: {error}",))
    records, missing = [], []
    for place, source in enumerate(sources):
        stem = f"{artefact.operator}_{artefact.candidate.id}_{place}"
        for arch in archs:
            target = target_of(source.options) or arch
            if target.rstrip("af") != arch.rstrip("af"):
                continue
            try:
                cubin, symbols = compile_cubin(
                    source.code, source.options, target, source.expressions
                )
            except NvrtcError as error:
                missing.append(f"{arch}: {str(error).splitlines()[-1]}")
                continue
            file = f"kernels/{stem}.{target}.cubin"
            (root / file).write_bytes(cubin)
            sha256 = hashlib.sha256(cubin).hexdigest()
            records.append(
                {
                    "source": source.key,
                    "arch": target,
                    "file": file,
                    "sha256": sha256,
                    "symbols": symbols,
                }
            )
    return Compiled(tuple(records), tuple(missing))


def device_sources(text: str) -> Iterator[DeviceSource]:
    """Raises Unknown where one of them cannot be read."""
    tree = ast.parse(text)
    known = _constants(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in ("RawModule", "RawKernel"):
            given = {k.arg: _value(k.value, known) for k in node.keywords if k.arg is not None}
            if node.args:
                given["code"] = _value(node.args[0], known)
            if len(node.args) > 2:
                given["options"] = _value(node.args[2], known)
            yield _source(given)


def _source(given: Mapping[str, Any]) -> DeviceSource:
    code = given.get("code")
    if not isinstance(code, str):
        raise Unknown("RawModule without code")
    expressions = given.get("name_expressions") or ()
    return DeviceSource(code, tuple(given.get("options") or ()), tuple(expressions))


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Names that the module's top level binds once, to something that can be read."""
    bound = [
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    ]
    known: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and bound.count(target.id) == 1:
                try:
                    known[target.id] = _value(node.value, known)
                except Unknown:
                    continue
    return known


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(str(_value(part, known)) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion == -1:
        return _value(node.value, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult | ast.Mod):
        return _joined(node, known)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(item, known) for item in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = _value(node.func.value, known)
        if isinstance(owner, str) and node.func.attr in METHODS:
            given = [_value(argument, known) for argument in node.args]
            named = {k.arg: _value(k.value, known) for k in node.keywords if k.arg is not None}
            return getattr(owner, node.func.attr)(*given, **named)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise Unknown(ast.unparse(node)[:60]) from error


def _joined(node: ast.BinOp, known: Mapping[str, Any]) -> Any:
    left, right = _value(node.left, known), _value(node.right, known)
    try:
        if isinstance(node.op, ast.Add):
            return left + right
        return left * right if isinstance(node.op, ast.Mult) else left % right
    except (TypeError, ValueError) as error:
        raise Unknown(ast.unparse(node)[:60]) from error
