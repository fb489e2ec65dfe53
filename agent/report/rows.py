"""A campaign's task as a row of the report's table."""

from __future__ import annotations

from collections.abc import Sequence

from agent.confirm import promising
from agent.journals.outcome import Stage, TaskReport
from agent.journals.recorded import Recorded
from agent.report.page import Row, State
from agent.types import Measured
from kernelbench.metrics import score_of
from sandbox.evidence import Kind
from sandbox.types import Evaluation
from sandbox.words import visible


def row_of(
    known: TaskReport, records: Sequence[Recorded], measured: Measured | None, doubts: int = 0
) -> Row:
    """The table's row of a task."""
    figure, speedup = known.figure, known.speedup
    timing = None if figure is None else figure.timing
    score = None if figure is None or speedup is None else score_of(known.task_id, 0, figure)
    candidate = None if known.best is None else known.best.proposal.candidate
    measured = measured or Measured()
    return Row(
        known.task_id,
        state_of(known),
        known.verdict,
        visible(known.reason),
        speedup,
        None if score is None else score.against_best,
        _baselines(figure, measured),
        timing.reference_ms if timing is not None else measured.eager_ms,
        None if timing is None else timing.candidate_ms,
        known.tried,
        sum(r.evaluation is not None and r.evaluation.passed for r in records),
        "" if candidate is None else candidate.language.value,
        "" if figure is None or figure.kind is None else figure.kind.value,
        "" if figure is None else figure.precision or "",
        doubts,
        None if score is None else score.roofline,
    )


def state_of(known: TaskReport) -> State:
    """Its colour. An unsupported task is a failure, one that cannot be scored is none."""
    if known.stage is Stage.INVALID:
        return State.LEFT_OUT
    if known.confirmed and known.confirmation is not None:
        kind = known.confirmation.kind
        return State.WIN if kind in (None, Kind.KERNEL) else State.APART
    if not known.stage.final:
        return State.RUNNING
    if known.best is None and known.passed:  # none of them was timed
        return State.EVEN
    if known.best is None:
        untried = known.tried == known.faults and known.stage is not Stage.UNSUPPORTED
        return State.UNTRIED if untried else State.FAILED
    return State.CLAIM if promising(known.best.evaluation) else State.EVEN


def _baselines(figure: Evaluation | None, measured: Measured) -> dict[str, float]:
    if figure is not None and figure.baselines:
        return {b.name: b.speedup.value for b in figure.baselines if b.speedup is not None}
    if not measured.eager_ms:
        return {}
    return {name: measured.eager_ms / ms for name, ms in measured.baselines_ms.items() if ms}
