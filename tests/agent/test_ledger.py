"""Caps hold at every moment, over requests in flight and over the end of a process."""

import resource
import threading
from pathlib import Path

import pytest

from agent.model import CapReached, ModelError
from agent.models.ledger import Caps, Ledger, Spend
from agent.models.prices import Price, price_of
from sandbox.errors import ConfigError

ONE = Spend(1, 100, 0.5)


@pytest.mark.parametrize(
    ("caps", "words"),
    [
        (Caps(max_requests=2), r"max_requests \(2\)"),
        (Caps(max_tokens=299), r"max_tokens \(299\)"),
        (Caps(max_usd=1.4), r"max_usd \(1.4\)"),
    ],
)
def test_each_cap_refuses_the_first_request_that_could_exceed_it(caps, words):
    ledger = Ledger(caps=caps)
    for _ in range(2):
        ledger.settle(ledger.reserve(ONE), ONE)
    with pytest.raises(CapReached, match=words):
        ledger.reserve(ONE)
    assert ledger.spent == Spend(2, 200, 1.0)


def test_what_a_request_did_not_use_is_free_again():
    ledger = Ledger(caps=Caps(max_tokens=150))
    ledger.settle(ledger.reserve(ONE), Spend(1, 40))
    ledger.settle(ledger.reserve(ONE), Spend(1, 40))
    with pytest.raises(CapReached):
        ledger.reserve(ONE)


def test_a_request_waits_for_those_in_flight_whose_refund_may_make_room():
    ledger = Ledger(caps=Caps(max_tokens=150))
    first = ledger.reserve(ONE)
    got = []
    thread = threading.Thread(target=lambda: got.append(ledger.reserve(ONE)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    ledger.settle(first, Spend(1, 10))
    thread.join(5)
    assert len(got) == 1


def test_many_threads_never_exceed_a_cap():
    ledger = Ledger(caps=Caps(max_requests=25, max_tokens=2400))
    most, refused = [], []

    def spend():
        for _ in range(10):
            try:
                reservation = ledger.reserve(ONE)
            except CapReached:
                refused.append(1)
                continue
            most.append(ledger.spent)
            ledger.settle(reservation, Spend(1, 90))

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(s.requests for s in most) <= 25
    assert max(s.tokens for s in most) <= 2400
    assert (len(most), len(refused)) == (25, 15)


def test_what_a_killed_process_had_in_flight_counts_as_spent(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    first.settle(first.reserve(ONE), Spend(1, 10, 0.1))
    first.reserve(ONE)
    with Ledger(path, Caps(max_requests=3)) as second:
        assert second.spent == Spend(2, 110, 0.6)
        second.settle(second.reserve(ONE), ONE)
        with pytest.raises(CapReached):
            second.reserve(ONE)


def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.settle(ledger.reserve(ONE), ONE)
    path.write_text(path.read_text() + '{"event": "rese')
    with Ledger(path) as again:
        assert again.spent == ONE
        again.settle(again.reserve(ONE), ONE)
    assert Ledger(path).spent == ONE + ONE


def test_a_request_whose_line_fits_in_part_is_not_sent_and_the_file_stays_whole(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.settle(ledger.reserve(ONE), ONE)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, limits[1]))
        try:
            with pytest.raises(ModelError, match="ledger cannot be written"):
                ledger.reserve(ONE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        ledger.settle(ledger.reserve(ONE), ONE)
    assert Ledger(path).spent == ONE + ONE


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("hello\n")
    with pytest.raises(ConfigError, match="line 1 is no line of a ledger"):
        Ledger(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match="is no ledger"):
        Ledger(path)


def test_the_price_of_a_model_is_the_entry_that_names_it_best():
    prices = {"m-*": Price(1, 2), "m-large*": Price(3, 4), "m-large-2": Price(5, 6)}
    assert price_of("m-large-2", prices) == Price(5, 6)
    assert price_of("m-large-3", prices) == Price(3, 4)
    assert price_of("m-tiny", prices) == Price(1, 2)
    assert price_of("other", prices) is None
    assert Price(2, 10).cost_usd(1000, 500) == pytest.approx(0.007)
    assert Price(2, 10, batch=0.5).in_batches() == Price(1, 5)


def test_a_negative_price_is_refused():
    with pytest.raises(ValueError, match="expected none below 0"):
        Price(-1, 2)
