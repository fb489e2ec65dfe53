"""What each layer of defence has to say about one observation. Pure functions, one per layer.

A `PROOF` makes the verdict; everything else is for readers, reports and audits. Claims of the
candidate's worker count only against it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.evidence import MACHINE_CODE, Evidence, Kind, Layer, Weight
from sandbox.figures import Interval, Timing
from sandbox.judging import merging, overrun
from sandbox.machine import hardware_counters
from sandbox.observation import CaseObservation, Observation, RuntimeClaim
from sandbox.words import number_of

PRECISION_CLASSES = (("float32", 1e-5), ("tf32", 8e-4), ("bfloat16", 6e-3), ("float8", 8e-2))
"""Norm error up to which a result counts as this class (twice to three times the measured
constant).
"""
FLOOR_SHARE = 0.9
IDLE_SHARE, IDLE_S = 0.05, 0.02
SPIN_S = 150e-6
"""CPU time, while nothing was asked, above which a reader should look: so much at least, this share
of the time, and what the threads of an idle OpenMP team spin after a call (GOMP_SPINCOUNT)."""
MEMORY_RATIO, MEMORY_BYTES = 2.0, 256 << 20
"""More memory than the reference by both: worth a note."""
HARMLESS_FLAGS = ("grad:", "inference_mode:", "default_device:", "default_dtype:")
"""Settings that change no operator's speed on the tensors that a call is given."""
CONDITIONED = 4.0
EXPLAINED = 3.0
"""Times the reference's own error: beyond them most of a difference from it is the candidate's."""
OVERLAP = 1.5
OWN_SHARE = 0.5
"""Of a call's time in the candidate's own kernels, from which it counts as a custom kernel."""
LISTED = 8


def before_timing(observation: Observation, *, sound: bool) -> tuple[Evidence, ...]:
    """The layers that need no timing; `sound` if every output was right."""
    return (
        static(observation),
        process(observation),
        *(values(observation) if sound else ()),
        parameters(observation),
        *runtime(observation.runtime, observation.cases, observation.machine_code),
        *tree(observation),
        *signature(observation),
        *memory(observation),
        *provenance(observation),
    )


BY_CLOCK = (Layer.TIMING, Layer.IDLE, Layer.ROOFLINE, Layer.LAUNCH)
"""Layers whose proofs are figures of a clock (`physics`)."""
BY_FACTS = (Layer.ROOFLINE, Layer.LAUNCH)
"""Of those, what is held against figures of the device."""


def proof(evidence: Sequence[Evidence]) -> Evidence | None:
    """The first that no honest candidate can produce."""
    return next((found for found in evidence if found.weight is Weight.PROOF), None)


def static(observation: Observation) -> Evidence:
    if observation.source.refused:
        return Evidence(Layer.STATIC, Weight.PROOF, (observation.source.refused,))
    facts = observation.source.facts
    return Evidence(Layer.STATIC, Weight.NOTED if facts else Weight.CLEAN, facts)


def process(observation: Observation) -> Evidence:
    """How far apart candidate, reference and judge were kept."""
    pairs = {r.pair for r in observation.rounds}
    facts = (
        f"walls {observation.environment.get('walls', 'unknown')}",
        f"{number_of(len(pairs), 'process pair')}, {number_of(len(observation.rounds), 'round')}",
    )
    weak = observation.environment.get("walls") == "weak"
    return Evidence(Layer.PROCESS, Weight.NOTED if weak else Weight.CLEAN, facts)


def values(observation: Observation) -> list[Evidence]:
    """Which inputs it was verified on, and how many timed outputs were compared."""
    calls = sum(r.calls for r in observation.rounds)
    names = tuple(case.name for case in observation.cases)
    facts = [f"outputs of {calls} timed calls compared"]
    layout = next((case.layout_differs for case in observation.cases if case.layout_differs), "")
    if layout:
        facts.append(f"{layout}: handing it over is charged")
    return [
        Evidence(Layer.VALUES, Weight.NOTED if layout else Weight.CLEAN, tuple(facts)),
        Evidence(Layer.HIDDEN_INPUTS, Weight.CLEAN, names),
    ]


def parameters(observation: Observation) -> Evidence:
    facts = {
        "none": "no parameters or buffers",
        "seed": "matched by a shared seed only: nothing could be overwritten",
    }
    how = observation.parameters
    words = facts.get(how, f"matched by {how}; randomised, and overwritten between batches")
    return Evidence(
        Layer.HIDDEN_PARAMETERS, Weight.SUSPICIOUS if how == "seed" else Weight.CLEAN, (words,)
    )


def runtime(
    claim: RuntimeClaim | None, cases: tuple[CaseObservation, ...] = (), machine_code: str = ""
) -> list[Evidence]:
    if claim is None:
        return []
    patched = tuple(f"{name} was replaced" for name in claim.patched[:LISTED])
    sharing = tuple(dict.fromkeys(words for case in cases for words in case.sharing))
    facts = (*patched, *claim.flags[:LISTED], *sharing[:LISTED])
    weight = Weight.PROOF if patched else Weight.NOTED if facts else Weight.CLEAN
    built = (f"{MACHINE_CODE}{machine_code}",) if machine_code else ()
    return [Evidence(Layer.RUNTIME, weight, (*facts, *claim.kernels[:LISTED], *built))]


def tree(observation: Observation) -> list[Evidence]:
    seen, beside = observation.tree, observation.reference_tree
    if not seen.threads:
        return []
    facts = [f"{seen.threads} threads, {seen.threads_before} before it was loaded"]
    if beside.threads:
        facts[0] += f"; the reference {beside.threads}"
    weight = Weight.CLEAN
    if seen.processes:
        weight = Weight.NOTED
        facts.append(f"left running: {', '.join(seen.processes[:LISTED])}")
    if seen.idle_s:
        facts.append(
            f"{seen.idle_cpu_s * 1e3:.0f} ms of CPU time in {seen.idle_s * 1e3:.0f} ms in which "
            "nothing was asked of it"
        )
    spun_s = SPIN_S * seen.threads * seen.idle_spells
    if seen.idle_cpu_s > max(IDLE_S, IDLE_SHARE * seen.idle_s + spun_s):
        weight = Weight.SUSPICIOUS
    return [Evidence(Layer.TREE, weight, tuple(facts))]


def precision(observation: Observation) -> str | None:
    """Class of the worst norm error over the cases that are conditioned as well as the best, and
    over timed rounds, where it is beyond what the reference's own explains.
    """
    worst = worst_error(observation)
    if worst is None:
        return None
    return next((name for name, limit in PRECISION_CLASSES if worst <= limit), "looser")


def worst_error(observation: Observation) -> float | None:
    """Of norms, where the bound is near the tightest: a softmax of large inputs says nothing of the
    arithmetic.
    """
    cases = [case for case in observation.cases if case.bounds]
    bounds = [max(b.norm for b in case.bounds) for case in cases]
    tight = CONDITIONED * min(bounds, default=0.0)
    told = [
        e.norm
        for case, bound in zip(cases, bounds, strict=True)
        if bound <= tight
        for e in case.errors
    ]
    if bounds and bounds[0] <= tight:  # of inputs as given, which are timed
        timed = [e.norm for case in observation.timed[:1] for e in case.errors]
        told += [norm for norm in timed if norm > EXPLAINED * observation.own_error]
    return max(told, default=None)


def signature(observation: Observation) -> list[Evidence]:
    found, worst = precision(observation), worst_error(observation)
    if found is None:
        return []
    words = f"worst error norm {worst:.1e}: as computed in {found}"
    return [Evidence(Layer.PRECISION, Weight.CLEAN, (words,))]


def memory(observation: Observation) -> list[Evidence]:
    """Peak memory against the reference's: expanded weights and caches show here."""
    facts, weight = [], Weight.CLEAN
    ours, theirs = observation.tree, observation.reference_tree
    for what, mine, other in (
        ("host", ours.peak_bytes, theirs.peak_bytes),
        ("device", ours.peak_device_bytes, theirs.peak_device_bytes),
    ):
        if mine and other:
            facts.append(f"{what} {mine >> 20} MiB, the reference {other >> 20} MiB")
            if mine > MEMORY_RATIO * other and mine - other > MEMORY_BYTES:
                weight = Weight.NOTED
    return [Evidence(Layer.MEMORY, weight, tuple(facts))] if facts else []


def peaks(observation: Observation) -> tuple[int | None, int | None]:
    """Bytes of the candidate's worker and of the reference's, of the device where both have some;
    None where one of them is not known.
    """
    ours, theirs = observation.tree, observation.reference_tree
    for mine, other in (
        (ours.peak_device_bytes, theirs.peak_device_bytes),
        (ours.peak_bytes, theirs.peak_bytes),
    ):
        if mine and other:
            return mine, other
    return None, None


def provenance(observation: Observation) -> list[Evidence]:
    seen = observation.provenance
    if seen is None:
        return []
    if seen.own_share is None:
        words = seen.problem or "nothing was recorded"
        return [Evidence(Layer.PROVENANCE, Weight.NOTED, (f"not known: {words}",))]
    where = (
        "in kernels that are no library's"
        if seen.unit == "device"
        else ("outside torch's operators")
    )
    facts = [f"{seen.own_share:.0%} of {seen.unit} time {where}"]
    facts += [f"{origin}: {name} {share:.0%}" for origin, name, share in seen.names[:LISTED]]
    facts += hardware_counters.facts(seen.counters)
    if seen.uncounted:
        facts.append(f"no hardware counters: {seen.uncounted}")
    claimed = observation.language.custom_kernel and seen.own_share < OWN_SHARE
    return [Evidence(Layer.PROVENANCE, Weight.NOTED if claimed else Weight.CLEAN, tuple(facts))]


def overlap(observation: Observation, timing: Timing) -> list[Evidence]:
    """Kernels' own time against the time that was charged: more of it than that ran side by side,
    or unpaid.
    """
    seen = observation.provenance
    if seen is None or seen.unit != "device" or not seen.total_s:
        return []
    ratio = seen.total_s / (timing.candidate_ms / 1e3)
    words = f"{seen.total_s * 1e6:.1f} us of kernels in {timing.candidate_ms * 1e3:.1f} us a call"
    weight = Weight.SUSPICIOUS if ratio > OVERLAP else Weight.CLEAN
    return [Evidence(Layer.HOST, weight, (words,))]


def physics(observation: Observation, timing: Timing, batched: Interval) -> tuple[Evidence, ...]:
    """Merged calls, work behind "done", and times that no device reaches (docs/measuring.md).

    `batched`: what batches alone say of the speedup.
    """
    found = []
    candidate_s = timing.candidate_ms / 1e3
    merged = merging.convicted(observation.rounds, timing)
    if merged is not None:
        impossible, words = merged
        if timing.speedup.low < batched.low:
            words += (
                f"; they leave a lower bound of {timing.speedup.low:.2f}x, batches one of "
                f"{batched.low:.2f}x"
            )
        found.append(_physical(Layer.TIMING, impossible, words))
    left = overrun.convicted(observation.rounds)
    if left is not None:
        found.append(_physical(Layer.IDLE, *left))
    if observation.floor_s is not None:
        words = (
            f"{candidate_s * 1e6:.1f} us a call; moving the compulsory bytes takes "
            f"{observation.floor_s * 1e6:.1f} us"
        )
        beyond = candidate_s < FLOOR_SHARE * observation.floor_s
        found.append(_physical(Layer.ROOFLINE, beyond, words))
    if observation.launches_at_least:
        words = (
            f"{candidate_s * 1e6:.2f} us a call; one launch costs at least "
            f"{observation.launches_at_least * 1e6:.2f} us"
        )
        found.append(_physical(Layer.LAUNCH, candidate_s < observation.launches_at_least, words))
    return (*found, *overlap(observation, timing))


def _physical(layer: Layer, impossible: bool, words: str) -> Evidence:
    return Evidence(layer, Weight.PROOF if impossible else Weight.CLEAN, (words,))


def own_share(observation: Observation) -> float | None:
    """Of a call's time, in the candidate's own kernels; None where that is not known."""
    seen = observation.provenance
    if seen is None or seen.own_share is None:
        return None
    # Python between torch's operators is time outside them too, but it is no kernel.
    return seen.own_share if observation.language.custom_kernel else 0.0


def kind(observation: Observation) -> Kind:
    """What makes the candidate fast, as far as the layers can tell."""
    flags = () if observation.runtime is None else observation.runtime.flags
    if any(not flag.startswith(HARMLESS_FLAGS) for flag in flags):
        return Kind.FLAGS
    share = own_share(observation)
    if observation.language.custom_kernel if share is None else share >= OWN_SHARE:
        return Kind.KERNEL
    return Kind.GRAPH if observation.source.graphs else Kind.REWRITE
