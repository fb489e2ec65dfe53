"""Figures in a sentence."""

import pytest

from sandbox.words import number_of


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [(1, "task", "1 task"), (0, "win", "0 wins"), (1200, "reply", "1,200 replies")],
)
def test_one_is_no_plural(count, noun, words):
    assert number_of(count, noun) == words
