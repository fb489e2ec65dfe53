"""Reads one JSON request from stdin and writes a line of JSON for every check, or every operator
that was timed, as soon as it is done: a process that dies leaves what it had found. `what` is
`check`, with one `operator`, or `time`, with several.
"""

from __future__ import annotations

import json
import logging
import sys
import time

import torch

from .checks import CHECKS, Heard, Skip
from .clock import timed
from .exchange import say, told
from .subject import Subject


def main() -> None:
    logging.getLogger().addHandler(Heard(logging.WARNING))
    request = json.load(sys.stdin)
    if request["what"] == "check":
        check(Subject(request))
        return
    for one in request["operators"]:  # in one process: the library as a program uses it
        try:
            say(operator=one["operator"], **timed(Subject({**request, **one})))
        except Exception as failure:  # noqa: BLE001  one operator says nothing of the next
            say(operator=one["operator"], failed=told(failure))
        if request["device"] == "cuda":
            torch.cuda.empty_cache()


def check(subject: Subject) -> None:
    for one in CHECKS:
        start, state, detail = time.perf_counter(), "passed", ""
        try:
            detail = one(subject)
        except Skip as reason:
            state, detail = "skipped", str(reason)
        except Exception as failure:  # noqa: BLE001  one check says nothing of the next
            state, detail = "failed", told(failure)
        seconds = round(time.perf_counter() - start, 2)
        say(check=one.__name__, state=state, detail=detail, s=seconds)


if __name__ == "__main__":
    main()
