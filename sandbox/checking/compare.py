"""How far an output is from the truth: whole tensor, per row, and per element of its row's scale
or, where that is larger, of its own size.

Norm-wise error alone misses a dropped tail; elementwise `allclose` is blind on U[0,1) inputs and
too strict near zero (measured). Runs in the supervisor on
private copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from sandbox.checking import fused
from sandbox.observation import Errors

CHUNK_ELEMENTS = 1 << 25
"""Elements compared at a time, so that float64 copies stay below half a gigabyte."""
CACHED_BYTES = 1 << 19
"""On the CPU, few enough that the passes after the first find them in a core's cache, and that the
allocator does not return them to the system each time."""
SHORT_ROW = 16
"""Rows shorter than this are joined with their neighbours: too few elements for a scale."""
FEW_VALUES, SAMPLED = 16, 4096
SOME = 8
"""Indices."""
"""Distinct values, of so many elements, up to which a tensor is a mask or a constant."""
QUIET_ROW = 1e-3
"""A row this much quieter than the tensor is judged by the tensor's scale."""


def errors(out: torch.Tensor, truth: torch.Tensor, bound: Errors | None = None) -> Errors:
    """Errors of one leaf; `out` and `truth` have one shape, any dtypes, any device alike.

    Integer and bool leaves are exact: `misplaced` counts the elements that differ. With a `bound`,
    `element` may be an upper limit that is within it: that takes a third of the memory traffic.
    """
    if out.numel() == 0:
        return Errors()
    if not truth.is_floating_point():
        return Errors(misplaced=int((out != truth).sum()))
    rows, length = row_shape(truth)
    out, truth = out.reshape(rows, length), truth.reshape(rows, length)
    if bound is not None and fused.able(out, truth):
        limits = _limits_at_once(out, truth)
        if limits.element <= bound.element:
            return limits
    for dtype in (torch.float32, torch.float64):
        if dtype is torch.float64 or truth.dtype is not torch.float64:
            found = _finite_errors(out, truth, dtype, bound)
            if found is not None:
                return found
    squares, energies, peaks, misplaced = [], [], [], 0
    step = max(1, _chunk(out, torch.float64) // length)
    for start in range(0, rows, step):
        chunk = slice(start, start + step)
        difference, expected, count = _finite(out[chunk], truth[chunk].double())
        energies.append((expected * expected).sum(1))
        squares.append((difference * difference).sum(1))
        peaks.append(_peaks(difference, expected, (energies[-1] / length).sqrt()))
        misplaced += count
    return _summary(torch.cat(squares), torch.cat(energies), torch.cat(peaks, 1), length, misplaced)


def _limits_at_once(out: torch.Tensor, truth: torch.Tensor) -> Errors:
    """Both (rows, length); `element` is an upper limit."""
    length = truth.shape[1]
    seen = fused.sums(out, truth)
    rms = (seen.energy / length).sqrt()
    peaks = torch.stack((seen.apart, seen.apart / _positive(rms)))
    return _summary(seen.square, seen.energy, peaks, length, seen.misplaced)


def _finite_errors(
    out: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype, bound: Errors | None
) -> Errors | None:
    """Both (rows, length), computed in `dtype`: float32 takes a third of float64's memory traffic
    for the same figures to three digits.

    None where the type cannot hold them (overflow, underflow, anything not finite).
    """
    length = truth.shape[1]
    step = max(1, _chunk(out, dtype) // length)
    norms, energies, peaks = [], [], []
    for start in range(0, truth.shape[0], step):
        expected = truth[start : start + step].to(dtype)
        difference = out[start : start + step].to(dtype) - expected
        norms.append(torch.linalg.vector_norm(difference, dim=1))
        energies.append(torch.linalg.vector_norm(expected, dim=1))
        rms = energies[-1] / math.sqrt(length)
        peaks.append(
            _peaks(difference, expected, rms) if bound is None else _limits(difference, rms)
        )
    square, energy = torch.cat(norms).double() ** 2, torch.cat(energies).double() ** 2
    total = float(square.sum() + energy.sum())
    underflow = dtype is torch.float32 and float(energy.max()) < 1e-20
    if not math.isfinite(total) or underflow:
        return None
    found = _summary(square, energy, torch.cat(peaks, 1).double(), length, 0)
    loose = bound is not None and found.element > bound.element
    return _finite_errors(out, truth, dtype, None) if loose else found


def _chunk(out: torch.Tensor, dtype: torch.dtype) -> int:
    """Elements compared at a time."""
    return CHUNK_ELEMENTS if out.is_cuda else CACHED_BYTES // dtype.itemsize


def _peaks(difference: torch.Tensor, expected: torch.Tensor, rms: torch.Tensor) -> torch.Tensor:
    """(2, rows): the largest difference, and the largest one over its element's size or, where that
    is larger, its row's rms. A softmax row's peak is many times its rms, and carries the relative
    error of the row's sum.
    """
    apart = difference.abs()
    size = torch.maximum(expected.abs(), _positive(rms).unsqueeze(1))
    return torch.stack((apart.amax(1), apart.div_(size).amax(1)))


def _limits(difference: torch.Tensor, rms: torch.Tensor) -> torch.Tensor:
    """(2, rows) as `_peaks`, the second as if no element were larger than its row's rms."""
    # A vector_norm of infinite order is ten times slower on the CPU.
    apart = torch.maximum(difference.amax(1), -difference.amin(1))
    return torch.stack((apart, apart / _positive(rms)))


def _positive(rms: torch.Tensor) -> torch.Tensor:
    return rms.clamp_min(torch.finfo(rms.dtype).tiny)


def row_shape(tensor: torch.Tensor) -> tuple[int, int]:
    """(rows, row length): the last dimension, joined with earlier ones while shorter than
    SHORT_ROW.
    """
    length = 1
    for size in reversed(tensor.shape):
        length *= size
        if length >= SHORT_ROW:
            break
    return tensor.numel() // length, length


def _finite(out: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Both with their agreeing non-finite places zeroed, and how many places disagree."""
    actual = out.double()
    agree = (actual == expected) | (actual.isnan() & expected.isnan())
    both = actual.isfinite() & expected.isfinite()
    zero = torch.zeros((), dtype=torch.float64, device=out.device)
    difference = torch.where(both, actual - expected, zero)
    return difference, torch.where(both, expected, zero), int((~both & ~agree).sum())


def _summary(
    square: torch.Tensor,
    energy: torch.Tensor,
    peaks: torch.Tensor,
    length: int,
    misplaced: int,
) -> Errors:
    total_square, total_energy = float(square.sum()), float(energy.sum())
    if total_square == 0.0:
        return Errors(misplaced=misplaced)
    if total_energy == 0.0 or not math.isfinite(total_square + total_energy):
        return Errors(math.inf, math.inf, math.inf, misplaced)
    typical = math.sqrt(total_energy / (energy.numel() * length))
    rms, quiet = (energy / length).sqrt(), QUIET_ROW * typical
    scale = rms.clamp_min(quiet)
    element = torch.where(rms < quiet, peaks[0] / quiet, peaks[1])
    return Errors(
        norm=math.sqrt(total_square / total_energy),
        row=float(((square / length).sqrt() / scale).max()),
        element=float(element.max()),
        misplaced=misplaced,
    )


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors of one shape, (elements,) of each at a time: of outputs of gigabytes no whole copy in
    another type fits beside them.
    """
    flat = [t.reshape(-1) for t in tensors]
    for start in range(0, tensors[0].numel(), CHUNK_ELEMENTS):
        yield tuple(t[start : start + CHUNK_ELEMENTS] for t in flat)


def identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bytes equal; both uint8, of one size, a multiple of 8."""
    return bool(torch.equal(left.view(torch.int64), right.view(torch.int64)))


def ties_explain(indices: torch.Tensor, expected: torch.Tensor, inputs: list[torch.Tensor]) -> bool:
    """True when differing indices pick equal values, along some dimension, from every input that
    they can pick from.

    Sorting, top-k and arg-reductions may break ties differently; an index repeated where the
    reference repeats none is no tie. A mask, or a bias of zeros, has equal values wherever one
    looks: beside inputs of many values, tokens among them, those alone explain nothing. Whole
    numbers are asked where no floating ones of many values can be picked from. Nor is a tie what a
    constant would be as well: of a padded row, how long it is and its last place hold the same.
    """
    if indices.is_floating_point() or indices.dtype == torch.bool:
        return False
    varied = [not few_values(values) for values in inputs]
    for dim in range(max((values.ndim for values in inputs), default=0)):
        for keep in (True, False):
            fitting = [i for i, values in enumerate(inputs) if _fits(indices, values, dim, keep)]
            able = [i for i in fitting if inputs[i].is_floating_point()]
            able = able if any(varied[i] for i in able) else fitting
            telling = not any(varied) or any(varied[i] for i in able)
            if able and telling:
                found = (_same_picks(indices, expected, inputs[i], dim, keep) for i in able)
                if all(found):
                    return True
    return False


def _constant_holds(held: torch.Tensor, values: torch.Tensor, dim: int) -> bool:
    """Whether the first or the last place along `dim` holds throughout what the reference picked
    there, though not all places do; of fewer than `SOME` it may by chance.
    """
    if held.shape[dim] != 1 or held.numel() < SOME:
        return False
    ends = (values.narrow(dim, place, 1) for place in (0, values.shape[dim] - 1))
    return any(map(held.equal, ends)) and not bool((values == held).all())


def few_values(values: torch.Tensor) -> bool:
    """Whether it is a mask, a set of labels or a constant."""
    flat = values.reshape(-1)
    sampled = flat[:: max(1, flat.numel() // SAMPLED)]
    return int(sampled.unique().numel()) <= FEW_VALUES


def _fits(indices: torch.Tensor, values: torch.Tensor, dim: int, keep: bool) -> bool:
    """Whether they could be places along that dimension, which they `keep` or are without."""
    shape, picks = list(values.shape), list(indices.shape)
    if dim >= len(shape) or len(picks) != len(shape) - (not keep):
        return False
    return shape[:dim] + shape[dim + 1 :] == (picks[:dim] + picks[dim + 1 :] if keep else picks)


def _same_picks(
    indices: torch.Tensor, expected: torch.Tensor, values: torch.Tensor, dim: int, keep: bool
) -> bool:
    """Of what fits."""
    picks, wanted = indices.long(), expected.long()
    if not keep:
        picks, wanted = picks.unsqueeze(dim), wanted.unsqueeze(dim)
    size = values.shape[dim]
    if size == 0 or bool((picks < 0).any()) or bool((picks >= size).any()):
        return False
    if bool((wanted < 0).any()) or bool((wanted >= size).any()):
        return False
    held = values.gather(dim, wanted)
    if not torch.equal(values.gather(dim, picks), held) or _constant_holds(held, values, dim):
        return False
    ordered = picks.sort(dim).values
    repeats = (ordered.diff(dim=dim) == 0).any()
    return not bool(repeats)
