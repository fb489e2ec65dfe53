"""Where and how a wrong output differs from the truth: what a judge tells the candidate's author.

Computed only for an output that failed its bound, on the supervisor's private copies. It gives
places, shares and factors, never an expected value. A pattern is a guess by shape alone: it decides
nothing.
"""

from __future__ import annotations

import contextlib

import torch

from sandbox.checking.compare import CHUNK_ELEMENTS, QUIET_ROW, row_shape
from sandbox.observation import Errors, Mismatch

LOST_PRECISION = 0.05
"""Relative error norm below which all is roughly right: only digits are lost."""
SCALED_RESIDUE = 1e-3
"""What is left, relative, once a constant factor is taken out."""
SOLID = 0.9
"""Share of wrong elements within a tail that makes it one."""
TRANSPOSED = "it is right but for its last two dimensions, which are transposed"
LARGEST_ELEMENTS = 1 << 28
"""Beyond it patterns that need a copy of the whole are not looked for."""


def mismatch(out: torch.Tensor, truth: torch.Tensor, bound: Errors) -> Mismatch | None:
    """None where no single element is beyond the bound, or the device has no room to look. Shapes
    are equal; any devices alike.
    """
    if out.numel() == 0 or out.shape != truth.shape:
        return None
    # Beside large tensors our looking may take the last memory, which is not the candidate's fault.
    with contextlib.suppress(torch.OutOfMemoryError):
        return _described(out, truth, bound)
    torch.cuda.empty_cache()
    return None


def _described(out: torch.Tensor, truth: torch.Tensor, bound: Errors) -> Mismatch | None:
    wrong = wrong_elements(out, truth, bound)
    count = int(wrong.sum())
    if count == 0:
        return None
    first = int(wrong.view(torch.uint8).argmax())
    return Mismatch(
        shape=tuple(out.shape),
        share=count / out.numel(),
        count=count,
        first=coordinates(first, tuple(out.shape)),
        hints=tuple(hints(out, truth, wrong, count, first)),
    )


def wrong_elements(out: torch.Tensor, truth: torch.Tensor, bound: Errors) -> torch.Tensor:
    """Flat mask: unequal integers; floats further off than the bound allows their row."""
    if not truth.is_floating_point():
        return (out != truth).reshape(-1)
    rows, length = row_shape(truth)
    out, truth = out.reshape(rows, length), truth.reshape(rows, length)
    step = max(1, CHUNK_ELEMENTS // length)
    starts = range(0, rows, step)
    energies = [_energy(truth[start : start + step]) for start in starts]
    total = sum(float(energy.sum()) for energy in energies)
    typical = (total / max(1, truth.numel())) ** 0.5
    for allowed in (bound.element, bound.norm):
        parts = []
        for start, energy in zip(starts, energies, strict=True):
            expected = truth[start : start + step].double()
            actual = out[start : start + step].double()
            scale = (energy / length).sqrt().clamp_min(QUIET_ROW * typical).unsqueeze(1)
            near = (actual - expected).abs() <= allowed * scale
            equal = (actual == expected) | (actual.isnan() & expected.isnan())
            parts.append(~(near | equal))
        wrong = torch.cat(parts).reshape(-1)
        if bool(wrong.any()):
            break
    return wrong


def _energy(rows: torch.Tensor) -> torch.Tensor:
    expected = rows.double()
    return torch.where(expected.isfinite(), expected, 0.0).square().sum(1)


def hints(
    out: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor, count: int, first: int
) -> list[str]:
    """What the wrong places have in common, the likeliest cause first."""
    found = []
    flat = out.reshape(-1)
    floating = truth.is_floating_point()
    if floating and bool((~flat.isfinite() & wrong).sum() == count):
        found.append("all of them are NaN or infinite")
    elif bool(((flat == 0) & wrong).sum() == count):
        found.append("all of them are zero: never written, or overwritten")
    small = out.numel() <= LARGEST_ELEMENTS
    whole = ""
    if floating and small and bool(flat.isfinite().all()) and bool(truth.isfinite().all()):
        whole = "" if found else of_the_whole(out.double(), truth.double())
    elif not floating and small and transposed(out, truth):
        whole = TRANSPOSED
    place = whole or where(wrong, tuple(out.shape), count, first)
    if place:
        found.append(place)
    return found


def where(wrong: torch.Tensor, shape: tuple[int, ...], count: int, first: int) -> str:
    """Whether the wrong elements are a tail: of the whole, of every row, or of the rows."""
    columns = shape[-1] if shape else 1
    rows = wrong.numel() // max(1, columns)
    if rows > 1 and columns > 1:
        grid = wrong.reshape(rows, columns)
        for name, line, size in (
            ("in the last dimension from index", grid.any(0), columns),
            ("in rows from number", grid.any(1), rows),
        ):
            start = int(line.view(torch.uint8).argmax())
            reach = (size - start) * (rows if size == columns and "last" in name else columns)
            if start and bool(line[start:].all()) and count >= SOLID * reach:
                return f"only {name} {start} of {size} on: a tail is missing"
    if first and count >= SOLID * (wrong.numel() - first):
        return f"only from flat index {first} of {wrong.numel()} on: a tail is missing"
    return ""


def of_the_whole(out: torch.Tensor, truth: torch.Tensor) -> str:
    """A cause that touches every element: a factor, a transposition, lost digits."""
    energy = float(truth.square().sum())
    if energy == 0:
        return ""
    error = (float((out - truth).square().sum()) / energy) ** 0.5
    factor = float((out * truth).sum()) / energy
    residue = (float((out - factor * truth).square().sum()) / energy) ** 0.5
    if factor and residue <= SCALED_RESIDUE * abs(factor) and abs(factor - 1) > SCALED_RESIDUE:
        return f"every element is {factor:.4g} times what it should be"
    if transposed(out, truth):
        return TRANSPOSED
    if error < LOST_PRECISION:
        return f"all is roughly right, relative error {error:.1g}: precision is lost on the way"
    return ""


def transposed(out: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether the values are the truth's with the last two dimensions in the other order."""
    if truth.ndim < 2 or 1 in truth.shape[-2:]:
        return False
    *lead, rows, columns = truth.shape
    turned = out.reshape(*lead, columns, rows).transpose(-1, -2)
    if not truth.is_floating_point():
        return bool(torch.equal(turned, truth)) and not bool(torch.equal(out, truth))
    energy = float(truth.square().sum())
    return energy > 0 and float((turned - truth).square().sum()) <= 1e-4 * energy


def coordinates(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a flat index, row-major."""
    found: list[int] = []
    for size in reversed(shape):
        found.append(index % size)
        index //= size
    return tuple(reversed(found))
