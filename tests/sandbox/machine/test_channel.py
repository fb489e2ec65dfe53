"""Frames over a socket pair: what arrives is ours, whole, in time, or an error that says which."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.machine.channel import (
    FRAME_LIMIT,
    Channel,
    ChannelClosed,
    ChannelProtocol,
    ChannelTimeout,
)

Pair = tuple[Channel, Channel]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.fixture
def ends() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    pair = Channel(ours, "n"), Channel(theirs, "n", takes_fds=True)
    yield pair
    for channel in pair:
        channel.close()


@given(st.lists(json_values, max_size=4))
def test_bodies_arrive_whole_and_in_order(bodies: list[object]) -> None:
    ours, theirs = (Channel(sock, "n") for sock in socket.socketpair())
    for body in bodies:
        ours.send(body)
    assert [theirs.receive(1) for _ in bodies] == bodies
    ours.close()
    theirs.close()


def test_a_body_larger_than_the_socket_buffer_arrives(ends: Pair) -> None:
    body = "x" * (FRAME_LIMIT - 100)
    sender = threading.Thread(target=ends[0].send, args=(body,))
    sender.start()
    assert ends[1].receive(5) == body
    sender.join()


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<I", FRAME_LIMIT + 1),
        struct.pack("<I", 4) + b"oops",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 2) + b"{}",
        struct.pack("<I", 2) + b"\xff\xfe",
        struct.pack("<I", 24) + b'{"nonce":"m","body":123}',
        struct.pack("<I", 200_000) + b"[" * 200_000,
        struct.pack("<I", 0),
    ],
    ids=["too long", "no JSON", "a list", "no nonce", "no UTF-8", "nonce", "deep", "empty"],
)
def test_a_foreign_frame_is_a_protocol_error(ends: Pair, frame: bytes) -> None:
    sender = threading.Thread(target=ends[1]._socket.sendall, args=(frame,))
    sender.start()
    with pytest.raises(ChannelProtocol):
        ends[0].receive(2)
    sender.join()


def test_a_frame_over_the_limit_is_not_sent(ends: Pair) -> None:
    with pytest.raises(ChannelProtocol, match="limit"):
        ends[0].send("x" * FRAME_LIMIT)


@pytest.mark.parametrize("start", [b"", b"\x10", struct.pack("<I", 100) + b"{"])
def test_a_frame_that_never_ends_times_out(ends: Pair, start: bytes) -> None:
    ends[1]._socket.sendall(start)
    began = time.monotonic()
    with pytest.raises(ChannelTimeout):
        ends[0].receive(0.2)
    assert 0.15 < time.monotonic() - began < 20


def test_bytes_in_a_trickle_do_not_extend_the_deadline(ends: Pair) -> None:
    def trickle() -> None:
        ends[1]._socket.sendall(struct.pack("<I", 100))
        for _ in range(12):
            ends[1]._socket.sendall(b" ")
            time.sleep(0.05)

    sender = threading.Thread(target=trickle)
    sender.start()
    with pytest.raises(ChannelTimeout):
        ends[0].receive(0.3)
    sender.join()


def test_both_directions_notice_the_other_end_is_gone(ends: Pair) -> None:
    ends[1].close()
    with pytest.raises(ChannelClosed):
        ends[0].receive(1)
    with pytest.raises(ChannelClosed):
        ends[0].send({})


def test_the_watch_is_called_while_waiting_and_may_raise(ends: Pair) -> None:
    calls = []

    def watch() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError

    with pytest.raises(KeyError):
        ends[0].receive(10, watch)


def test_descriptors_travel_with_their_frame(ends: Pair) -> None:
    read, write = os.pipe()
    ends[0].send({"op": "take"}, [write])
    os.close(write)
    assert ends[1].receive(1) == {"op": "take"}
    (received,) = ends[1].take_fds()
    os.write(received, b"hello")
    os.close(received)
    assert os.read(read, 9) == b"hello"
    assert ends[1].take_fds() == []
    os.close(read)


def test_descriptors_for_an_end_that_takes_none_are_dropped(ends: Pair) -> None:
    read, write = os.pipe()
    ends[1].send({}, [write] * 8)
    os.close(write)
    ends[0].receive(1)
    assert ends[0].take_fds() == []
    assert os.read(read, 1) == b""
    os.close(read)


@pytest.mark.slow
def test_a_peer_that_never_reads_does_not_block_us_for_ever(ends: Pair) -> None:
    with pytest.raises(ChannelClosed):
        ends[0].send("x" * (FRAME_LIMIT - 100))


@pytest.mark.parametrize("after_s", [0.0, 0.2])
def test_who_waits_awake_gets_what_comes_meanwhile_or_later(ends: Pair, after_s: float) -> None:
    ours, theirs = ends
    sender = threading.Timer(after_s, lambda: theirs.send("late"))
    sender.start()
    used = time.thread_time()
    try:
        assert ours.receive(10, awake_s=0.1) == "late"
    finally:
        sender.join()
    if after_s:
        assert time.thread_time() - used > 0.01, "it slept all the while"


def test_who_waits_awake_may_sleep_first_and_wakes_for_what_comes_early(ends: Pair) -> None:
    ours, theirs = ends
    sender = threading.Timer(0.3, lambda: theirs.send("late"))
    sender.start()
    used, start = time.thread_time(), time.monotonic()
    assert ours.receive(10, asleep_s=0.25, awake_s=0.2) == "late"
    sender.join()
    assert 0.01 < time.thread_time() - used < 0.15, "it slept or was awake all the while"
    theirs.send("early")
    assert ours.receive(10, asleep_s=10, awake_s=10) == "early"
    assert time.monotonic() - start < 5


def test_waiting_awake_is_no_reason_to_wait_for_ever(ends: Pair) -> None:
    with pytest.raises(ChannelTimeout):
        ends[0].receive(0.02, awake_s=0.01)
    for asleep_s in (0.01, 20):
        start = time.monotonic()
        with pytest.raises(ChannelTimeout):
            ends[0].receive(0.02, asleep_s=asleep_s, awake_s=0.01)
        assert time.monotonic() - start < 5


def test_whoever_sleeps_looks_after_the_worker_and_not_at_the_end(ends: Pair) -> None:
    looks: list[float] = []
    start = time.monotonic()
    with pytest.raises(ChannelTimeout):
        ends[0].receive(0.12, lambda: looks.append(time.monotonic() - start))
    assert len(looks) == 2
    looks.clear()
    with pytest.raises(ChannelTimeout):
        ends[0].receive(0.04, lambda: looks.append(0.0), asleep_s=0.02, awake_s=0.01)
    assert not looks
