"""What counts as a candidate's source in a model's reply."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.proposing.replies import Extraction, extract

CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
LATER = CODE.replace("pass", "training = False")


def block(code: str, tag: str = "python", fence: str = "```") -> str:
    return f"{fence}{tag}\n{code}{fence}\n"


@pytest.mark.parametrize(
    "reply",
    [
        block(CODE),
        block(CODE, tag=""),
        block(CODE, tag="python title=kernel.py"),
        block(CODE, fence="~~~"),
        block(CODE, fence="`````"),
        f"The reference is memory bound.\n\n{block(CODE)}\nThis fuses both passes.",
        f"```cpp\nint i;\n```\n{block(CODE)}```bash\npip list\n```",
        f"```cpp\nint never_closed;\n{block(CODE)}",
        f"A draft:\n{block(LATER)}\nThe final file:\n{block(CODE)}",
        f"<think>{block(LATER)}</think>\n{block(CODE)}",
        f"{block(LATER)}</think>\n{block(CODE)}",
        f"{block(CODE)}<think>{block(LATER)}",
        f"1. The file:\n\n   ```python\n{CODE.replace('import', '   import')}   ```\n".replace(
            "\nclass", "\n   class"
        ).replace("    pass", "       pass"),
        block(CODE).replace("\n", "\r\n"),
        CODE,
        f"\n\n{CODE}\n\n",
    ],
)
def test_the_last_complete_block_with_model_new_is_the_source(reply: str) -> None:
    assert extract(reply, "stop") == Extraction(CODE)


@pytest.mark.parametrize(
    ("reply", "finish_reason", "words"),
    [
        ("", "stop", "is empty"),
        ("  \n", None, "is empty"),
        ("", "length", "still reasoning"),
        ("<think>Let me see. ```python\nclass ModelNew:\n```", "length", "still reasoning"),
        ("I cannot help with that.", "stop", "no fenced code block"),
        (f"Here is the code: {CODE}", "stop", "no fenced code block"),
        (f"```python\n{CODE}", "stop", "not closed"),
        (f"```python\n{CODE}", "length", "cut off"),
        (CODE, "length", "cut off"),
        (block("class Model:\n    pass\n"), "stop", "defines ModelNew"),
        (block("def f():\n    class ModelNew: ...\n") * 2, "stop", "2 code block(s)"),
        (block(CODE + "# more\n" * 300_000), "stop", "more than 2097152 are refused"),
        (CODE + "# more\n" * 300_000, "stop", "more than 2097152 are refused"),
    ],
    ids=range(13),
)
def test_a_reply_without_code_says_what_to_change(
    reply: str, finish_reason: str | None, words: str
) -> None:
    found = extract(reply, finish_reason)
    assert found.source is None
    assert words in found.reason
    assert "\n" not in found.reason


def test_a_reply_that_begins_to_reason_again_and_again_is_read_at_once() -> None:
    began_s = time.perf_counter()
    assert "still reasoning" in extract("<think>" * 20_000).reason
    assert time.perf_counter() - began_s < 2, "20 s where each beginning looks for its end"


@given(st.text(), st.sampled_from([None, "stop", "length", "content_filter"]))
def test_any_text_gives_a_source_or_a_reason(text: str, finish_reason: str | None) -> None:
    found = extract(text, finish_reason)
    assert (found.source is None) == bool(found.reason)


lines = st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs"]))
prose = st.text(st.characters(blacklist_characters="`~<", blacklist_categories=["Cs"]))
bodies = st.lists(lines.filter(lambda line: not line.lstrip().startswith(("```", "~~~"))))


@given(prose, bodies.filter(lambda body: "think>" not in "".join(body)), prose)
def test_a_closed_block_survives_any_prose(before: str, body: list[str], after: str) -> None:
    code = CODE + "".join(f"# {line}\n" for line in body)
    assert extract(f"{before}\n```python\n{code}```\n{after}").source == code


@given(st.integers(min_value=0, max_value=len(block(CODE)) - 2))
def test_a_truncated_block_is_never_taken_for_the_whole_file(length: int) -> None:
    reply = "Fused.\n" + block(CODE)
    assert extract(reply[: len("Fused.\n") + length], "length").source in (None, CODE)
    assert extract(reply[: len("Fused.\n") + length], None).source in (None, CODE)


@given(st.text(alphabet="`~pythonclas ModelNw:\n<>/ik=", max_size=300))
def test_fences_and_tags_in_any_order_do_not_break_extraction(text: str) -> None:
    extract(text, "stop")
