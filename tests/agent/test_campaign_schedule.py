"""The rule for builds on the CPU, and the order of jobs."""

from agent.schedule import Job, Kind, Schedule, TaskRun
from sandbox.types import Task


def job(kind: Kind, round: int = 0, index: int = 0) -> Job:
    task = Task(f"t/{index}", "", "cpu")
    return Job(round, index, kind, 0, TaskRun(task, index, ()))


def begun(schedule: Schedule) -> list[tuple[Kind, int]]:
    return [(j.kind, j.index) for j in schedule.begin()]


def filled(*jobs: Job, exclusive: bool) -> Schedule:
    schedule = Schedule(1, exclusive=exclusive, thinkers=2)
    for one in jobs:
        schedule.push(one)
    return schedule


def test_on_the_cpu_a_lane_waits_for_builds_that_come_first():
    build, measure = job(Kind.BUILD), job(Kind.EVALUATE, index=1)
    schedule = filled(measure, build, exclusive=True)
    assert begun(schedule) == [(Kind.BUILD, 0)]
    schedule.ended(build)
    assert begun(schedule) == [(Kind.EVALUATE, 1)]


def test_on_the_cpu_builds_wait_while_a_lane_measures():
    measure, build = job(Kind.EVALUATE), job(Kind.BUILD, index=1)
    schedule = filled(build, measure, exclusive=True)
    assert begun(schedule) == [(Kind.EVALUATE, 0)]
    schedule.ended(measure)
    assert begun(schedule) == [(Kind.BUILD, 1)]


def test_on_a_gpu_builds_and_measurements_overlap():
    schedule = filled(job(Kind.EVALUATE), job(Kind.BUILD, index=1), exclusive=False)
    assert sorted(begun(schedule)) == [(Kind.BUILD, 1), (Kind.EVALUATE, 0)]


def test_an_earlier_round_goes_before_a_later_one():
    later, earlier = job(Kind.EVALUATE, round=1), job(Kind.EVALUATE, round=0, index=5)
    schedule = filled(later, earlier, exclusive=True)
    assert begun(schedule) == [(Kind.EVALUATE, 5)]
    schedule.ended(earlier)
    assert begun(schedule) == [(Kind.EVALUATE, 0)]


def test_proposals_start_at_once_up_to_the_number_of_thinkers():
    proposals = [job(Kind.PROPOSE, index=i) for i in range(3)]
    schedule = filled(job(Kind.EVALUATE), *proposals, exclusive=True)
    assert begun(schedule) == [(Kind.PROPOSE, 0), (Kind.PROPOSE, 1), (Kind.EVALUATE, 0)]


def test_dropped_jobs_never_begin():
    mine, other = job(Kind.EVALUATE), job(Kind.EVALUATE, index=1)
    schedule = filled(mine, other, exclusive=True)
    assert schedule.drop(list(Kind), mine.run) == [mine]
    assert begun(schedule) == [(Kind.EVALUATE, 1)]
