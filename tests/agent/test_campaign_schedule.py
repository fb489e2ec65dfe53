"""The order of jobs, and how many begin."""

from agent.loop.schedule import Job, Kind, Schedule, TaskRun
from sandbox.types import Task


def job(kind: Kind, round: int = 0, index: int = 0) -> Job:
    task = Task(f"t/{index}", "", "cpu")
    return Job(round, index, kind, 0, TaskRun(task, index, ()))


def begun(schedule: Schedule) -> list[tuple[Kind, int]]:
    return [(j.kind, j.index) for j in schedule.begin()]


def filled(*jobs: Job, places: int = 1, apart: bool = False) -> Schedule:
    schedule = Schedule(places, thinkers=2, apart=apart)
    for one in jobs:
        schedule.push(one)
    return schedule


def test_builds_and_measurements_overlap():
    schedule = filled(job(Kind.EVALUATE), job(Kind.BUILD, index=1))
    assert sorted(begun(schedule)) == [(Kind.BUILD, 1), (Kind.EVALUATE, 0)]


def test_an_earlier_round_goes_before_a_later_one():
    later, earlier = job(Kind.EVALUATE, round=1), job(Kind.EVALUATE, round=0, index=5)
    schedule = filled(later, earlier)
    assert begun(schedule) == [(Kind.EVALUATE, 5)]
    schedule.ended(earlier)
    assert begun(schedule) == [(Kind.EVALUATE, 0)]


def test_proposals_start_at_once_up_to_the_number_of_thinkers():
    proposals = [job(Kind.PROPOSE, index=i) for i in range(3)]
    schedule = filled(job(Kind.EVALUATE), *proposals)
    assert begun(schedule) == [(Kind.PROPOSE, 0), (Kind.PROPOSE, 1), (Kind.EVALUATE, 0)]


def test_a_model_that_samples_on_the_lanes_device_never_does_while_they_measure():
    proposals = [job(Kind.PROPOSE, index=i) for i in range(3)]
    measured = job(Kind.EVALUATE)
    schedule = filled(measured, *proposals, apart=True)
    assert begun(schedule) == [(Kind.PROPOSE, 0), (Kind.PROPOSE, 1)]
    schedule.ended(proposals[0])
    assert begun(schedule) == [(Kind.PROPOSE, 2)]
    for one in proposals[1:]:
        assert begun(schedule) == []
        schedule.ended(one)
    assert begun(schedule) == [(Kind.EVALUATE, 0)]
    schedule.push(job(Kind.PROPOSE, round=1))
    assert begun(schedule) == []
    schedule.ended(measured)
    assert begun(schedule) == [(Kind.PROPOSE, 0)]


def test_dropped_jobs_never_begin():
    mine, other = job(Kind.EVALUATE), job(Kind.EVALUATE, index=1)
    schedule = filled(mine, other)
    assert schedule.drop(list(Kind), mine.run) == [mine]
    assert begun(schedule) == [(Kind.EVALUATE, 1)]


def test_a_lane_takes_as_many_jobs_as_it_has_places():
    schedule = filled(*(job(Kind.EVALUATE, index=i) for i in range(4)), places=3)
    assert begun(schedule) == [(Kind.EVALUATE, i) for i in range(3)]
    assert schedule.queued()["to measure"] == 1
