"""Hardware counters of a call, as Nsight Compute reads them, in the profiled worker.

By CUPTI's host and range profiling interfaces (cupti_profiler_host.h, cupti_range_profiler.h; CUDA
12.6 and newer), in the library that torch has loaded. Nsight Compute itself needs sockets and
ptrace, which the walls forbid. Each kernel is a range, so that what lies between kernels dilutes
nothing, and the call is repeated until every counter had its pass. A claim, like all else that a
candidate's process says.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sandbox.machine.hardware_counters import METRICS, TIME

SONAMES = ("libcupti.so.13", "libcupti.so.12")
RANGE_PROFILER, AUTO_RANGE, USER_REPLAY = 0, 1, 3
"""CUPTI_PROFILER_TYPE_RANGE_PROFILER, CUPTI_AutoRange, CUPTI_UserReplay."""
MOST_PASSES, MOST_KERNELS = 64, 512
REASONS = {
    33: "CUPTI does not support this virtual GPU",
    35: "the driver shows counters to administrators only (NVreg_RestrictProfilingToAdminUsers=0)",
    40: "the virtual GPU's host does not allow it",
    41: "not on a GPU in confidential mode",
    999: "CUPTI failed, as it does where a call replays a CUDA graph",
}
"""By CUptiResult."""

Field = tuple[Any, Any]
"""The C type of a structure's member and its value."""
Image = ctypes.Array[ctypes.c_uint8]
SIZE, POINTER, BYTES = ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8)
NAMES = ctypes.POINTER(ctypes.c_char_p)


class Uncounted(Exception):
    """Counters cannot be read here, and why."""


def count(call: Callable[[], Any], synchronize: Callable[[], None]) -> dict[str, Any]:
    """`values` of one call by metric, in the metrics' own units (bytes, nanoseconds, percent);
    without any, the `problem`.
    """
    try:
        return {"values": Counters(Cupti.loaded(), context(), device()).of(call, synchronize)}
    except Uncounted as refused:
        return {"values": {}, "problem": str(refused)}


class Cupti:
    """The library; every one of its functions takes one structure, which begins with its size and a
    null pointer.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @classmethod
    def loaded(cls) -> Cupti:
        """The one that torch uses."""
        for name in SONAMES:
            try:
                return cls(ctypes.CDLL(name))
            except OSError:
                continue
        raise Uncounted(f"no {' or '.join(SONAMES)}")

    def __call__(self, function: str, **members: Field) -> Any:
        """Call with a structure of these members, in the header's order; it is returned."""
        kinds = [
            ("structSize", SIZE),
            ("pPriv", POINTER),
            *((n, k) for n, (k, _) in members.items()),
        ]
        made = type(function, (ctypes.Structure,), {"_fields_": kinds})
        last = getattr(made, kinds[-1][0])
        given = made(structSize=last.offset + last.size)
        for name, (_, value) in members.items():
            if value is not None:
                setattr(given, name, value)
        try:
            result = getattr(self.library, function)(ctypes.byref(given))
        except AttributeError:
            raise Uncounted(f"CUPTI has no {function}: CUDA 12.6 or newer has it") from None
        if result != 0:
            raise Uncounted(REASONS.get(result, f"{function} returned CUptiResult {result}"))
        return given


class Counters:
    """Of one context on one device."""

    def __init__(self, cupti: Cupti, context: int, device: int) -> None:
        self.cupti = cupti
        self.context = context
        cupti("cuptiProfilerInitialize")
        chip = cupti("cuptiDeviceGetChipName", device=(SIZE, device), name=(ctypes.c_char_p, None))
        self.chip: bytes = chip.name

    def of(self, call: Callable[[], Any], synchronize: Callable[[], None]) -> dict[str, float]:
        """All counters of one call; raises Uncounted."""
        with host(self.cupti, self.chip, self._availability()) as handle:
            metrics = supported(self.cupti, handle)
            config = config_image(self.cupti, handle)
            data = self._measured(metrics, config, call, synchronize)
            seen = self.cupti(
                "cuptiRangeProfilerGetCounterDataInfo",
                image=(BYTES, data),
                size=(SIZE, len(data)),
                ranges=(SIZE, None),
            )
            kernels = [self._values(handle, metrics, data, n) for n in range(seen.ranges)]
        if not kernels:
            raise Uncounted("the call launches no kernel that CUPTI sees")
        return together(kernels)

    def _values(
        self, handle: int, metrics: Sequence[str], data: Image, number: int
    ) -> dict[str, float]:
        """Of one kernel."""
        values = (ctypes.c_double * len(metrics))()
        self.cupti(
            "cuptiProfilerHostEvaluateToGpuValues",
            host=(POINTER, handle),
            image=(BYTES, data),
            size=(SIZE, len(data)),
            range=(SIZE, number),
            **_named(metrics),
            values=(ctypes.POINTER(ctypes.c_double), values),
        )
        return dict(zip(metrics, values, strict=True))

    def _availability(self) -> Image:
        """Which counters this device lets be read."""

        def asked(size: int, image: Any) -> int:
            found = self.cupti(
                "cuptiProfilerGetCounterAvailability",
                context=(POINTER, self.context),
                size=(SIZE, size),
                image=(BYTES, image),
            )
            return int(found.size)

        image = blank(asked(0, None))
        asked(len(image), image)
        return image

    def _measured(
        self,
        metrics: Sequence[str],
        config: Image,
        call: Callable[[], Any],
        synchronize: Callable[[], None],
    ) -> Image:
        """The counter data of as many calls as there are passes."""
        enabled = self.cupti(
            "cuptiRangeProfilerEnable", context=(POINTER, self.context), profiler=(POINTER, None)
        )
        mine: dict[str, Field] = {"profiler": (POINTER, enabled.profiler)}
        try:
            data = self._room(mine, metrics)
            self.cupti(
                "cuptiRangeProfilerSetConfig",
                **mine,
                config_size=(SIZE, len(config)),
                config=(BYTES, config),
                size=(SIZE, len(data)),
                image=(BYTES, data),
                range=(ctypes.c_int, AUTO_RANGE),
                replay=(ctypes.c_int, USER_REPLAY),
                most_ranges=(SIZE, MOST_KERNELS),
                nesting=(ctypes.c_uint16, 1),
                least_nesting=(ctypes.c_uint16, 1),
                pass_index=(SIZE, 0),
                target_nesting=(ctypes.c_uint16, 0),
            )
            for _ in range(MOST_PASSES):
                if self._passed(mine, call, synchronize):
                    decoded = self.cupti(
                        "cuptiRangeProfilerDecodeData", **mine, dropped=(SIZE, None)
                    )
                    if decoded.dropped:
                        raise Uncounted(f"a call launches more than {MOST_KERNELS} kernels")
                    return data
        finally:
            self.cupti("cuptiRangeProfilerDisable", **mine)
        raise Uncounted(f"the counters took more than {MOST_PASSES} passes")

    def _room(self, mine: dict[str, Field], metrics: Sequence[str]) -> Image:
        """An empty image."""
        asked = self.cupti(
            "cuptiRangeProfilerGetCounterDataSize",
            **mine,
            **_named(metrics),
            ranges=(SIZE, MOST_KERNELS),
            nodes=(ctypes.c_uint32, MOST_KERNELS),
            size=(SIZE, None),
        )
        data = blank(asked.size)
        self.cupti(
            "cuptiRangeProfilerCounterDataImageInitialize",
            **mine,
            size=(SIZE, len(data)),
            image=(BYTES, data),
        )
        return data

    def _passed(
        self, mine: dict[str, Field], call: Callable[[], Any], synchronize: Callable[[], None]
    ) -> bool:
        """One pass over one call; whether it was the last."""
        self.cupti("cuptiRangeProfilerStart", **mine)
        call()
        synchronize()
        stopped = self.cupti(
            "cuptiRangeProfilerStop",
            **mine,
            pass_index=(SIZE, None),
            nesting=(SIZE, None),
            complete=(ctypes.c_uint8, None),
        )
        return bool(stopped.complete)


def together(kernels: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What the kernels of a call come to: sums of amounts, and of the rest the mean over their
    time.
    """

    def of(metric: str) -> float:
        if metric.endswith(".sum"):
            return sum(kernel[metric] for kernel in kernels)
        # A ratio to nothing, of hits among no accesses say, is no number.
        told = [k for k in kernels if math.isfinite(k[metric])]
        weights = [k.get(TIME, 1.0) for k in told]
        whole = sum(weights)
        weighted = sum(k[metric] * w for k, w in zip(told, weights, strict=True))
        return weighted / whole if whole else math.nan

    return {metric: of(metric) for metric in kernels[0]}


@contextmanager
def host(cupti: Cupti, chip: bytes, availability: Image | None) -> Iterator[int]:
    """The handle of what schedules and evaluates metrics of a chip; needs no GPU."""
    opened = cupti(
        "cuptiProfilerHostInitialize",
        kind=(ctypes.c_int, RANGE_PROFILER),
        chip=(ctypes.c_char_p, chip),
        availability=(BYTES, availability),
        host=(POINTER, None),
    )
    try:
        yield opened.host
    finally:
        cupti("cuptiProfilerHostDeinitialize", host=(POINTER, opened.host))


def supported(cupti: Cupti, handle: int) -> list[str]:
    """Those of METRICS that the chip has; they are scheduled."""
    found = []
    for metric in METRICS:
        try:
            cupti("cuptiProfilerHostConfigAddMetrics", host=(POINTER, handle), **_named([metric]))
        except Uncounted:
            continue
        found.append(metric)
    if not found:
        raise Uncounted("the chip has none of the counters")
    return found


def config_image(cupti: Cupti, handle: int) -> Image:
    """What is scheduled, as a range profiler takes it."""
    mine: dict[str, Field] = {"host": (POINTER, handle)}
    size = cupti("cuptiProfilerHostGetConfigImageSize", **mine, size=(SIZE, None)).size
    image = blank(size)
    cupti("cuptiProfilerHostGetConfigImage", **mine, size=(SIZE, size), image=(BYTES, image))
    return image


def blank(size: int) -> Image:
    image: Image = (ctypes.c_uint8 * size)()
    return image


def context() -> int:
    """The current CUDA context."""
    found = ctypes.c_void_p()
    if ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(found)) or not found.value:
        raise Uncounted("no CUDA context")
    return found.value


def device() -> int:
    """The current context's device."""
    found = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(found)):
        raise Uncounted("no CUDA device")
    return found.value


def _named(metrics: Sequence[str]) -> dict[str, Field]:
    names = (ctypes.c_char_p * len(metrics))(*(metric.encode() for metric in metrics))
    return {"metrics": (NAMES, names), "count": (SIZE, len(metrics))}
