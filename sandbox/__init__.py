"""What is a task, a candidate, a verdict; build, run, measure, judge. Trusts nobody, imports none
of the others.

`evaluator.py` is the way in, `run.py` one candidate's way through; `types.py` has the nouns. Below
them, each using none but those before it (tests/test_imports.py):

    machine/    processes, memory and devices of this host; walls/ are around candidate code
    building/   sources to artifacts, ahead of the run; static/ reads them first
    judging/    what was seen, judged: pure functions
    subjects/   a worker with a model and its memory, seen from outside; worker/ is its inside
    checking/   whether outputs are right
    pairs/      how two workers are timed on equal inputs
    baselines/  what candidates are timed against
"""
