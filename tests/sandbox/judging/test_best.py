"""B*: which baseline it is, and that choosing it makes its figure no better."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from sandbox.figures import Baseline, Interval
from sandbox.judging.best import best_baseline

PAIRS, NOISE = 3, 0.05


def baseline(name: str, logs: tuple[float, ...], *, kept: bool = True) -> Baseline:
    value = math.exp(statistics.fmean(logs))
    interval = Interval(value, value / 1.1, value * 1.1)
    return Baseline(name, 1.0, interval, logs=logs if kept else ())


def test_what_is_clearly_the_fastest_has_its_own_figure():
    compiled = baseline("compile", (0.50, 0.52, 0.51))
    graph = baseline("cuda_graph", (0.1, 0.12, 0.09))
    failed = Baseline("max_autotune", None, None, "it failed")
    assert best_baseline([graph, compiled, failed]) == ("compile", compiled.speedup)


def test_without_a_faster_baseline_it_is_eager():
    assert best_baseline([]) == ("eager", None)
    assert best_baseline([baseline("compile", (-0.1, -0.2, 0.0))]) == ("eager", None)
    # On each pair that did not choose it, it is slower than eager.
    assert best_baseline([baseline("compile", (0.3, -0.1, -0.1))]) == ("eager", None)


def test_each_pair_measures_what_the_others_chose():
    one, other = baseline("one", (0.3, 0.0, 0.0)), baseline("other", (0.05, 0.12, 0.12))
    name, found = best_baseline([one, other])
    assert name == "one"  # over all pairs; by the other two pairs it is other, one, one
    assert found.value == pytest.approx(math.exp((0.05 + 0.0 + 0.0) / 3))
    assert found.high / found.value == pytest.approx(1.1)


def test_a_disturbed_baseline_of_more_pairs_is_chosen_and_measured_apart_all_the_same():
    one, other = baseline("compile", (0.3, 0.1, 0.2)), baseline("cuda_graph", (0.1, 0.4, 0.1, 0.19))
    name, found = best_baseline([one, other])
    # Of the others, means of 0.15 and 0.23, 0.25 and 0.13, 0.2 and 0.23.
    assert name == "compile"
    assert found is not None
    assert math.log(found.value) == pytest.approx((0.1 + 0.1 + 0.1) / 3)


def test_records_without_pairs_tell_what_was_measured():
    found = baseline("compile", (0.3, -0.1, -0.1), kept=False)
    assert best_baseline([found, baseline("cuda_graph", (0.01,) * 3)]) == ("compile", found.speedup)


def test_of_equal_baselines_the_luckiest_is_not_told_as_faster():
    """Three that are 1.2x in truth: the plain maximum is 2.4 % too fast, this one is not."""
    chance, true = random.Random(7), math.log(1.2)
    plain, crossed = [], []
    for _ in range(4000):
        drawn = [tuple(chance.gauss(true, NOISE) for _ in range(PAIRS)) for _ in range(3)]
        plain.append(max(map(statistics.fmean, drawn)))
        _, found = best_baseline([baseline(str(i), logs) for i, logs in enumerate(drawn)])
        crossed.append(math.log(found.value))
    assert statistics.fmean(plain) - true > 0.02
    assert abs(statistics.fmean(crossed) - true) < 0.003
