"""The tokenizer of a policy from nothing: blocks that repeat are tokens, and nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the train extra")

from rl.tokens import new_tokenizer, repeated_blocks

HEAD = "#include <math.h>\nstatic float one() {\n  return 1.0f;\n}\n"
TAIL = "LIBRARY = build(SOURCE)\nclass ModelNew:\n    pass\n"


def kernel(number: int) -> str:
    body = "".join(f"  const float v{i + 1} = v{i} * {number}.5f;\n" for i in range(number % 5 + 1))
    return HEAD + body + TAIL


TEXTS = [kernel(number) for number in range(40)]


def test_lines_that_are_found_together_are_one_block():
    assert set(repeated_blocks(TEXTS, 10)) == {HEAD, TAIL}


def test_a_kernel_is_the_same_tokens_after_whatever_leads_to_it():
    leads = ["In one pass.\n\n", "## Analysis\nSlow.\n\n## Implementation\n"]
    shown = [f"{leads[number % 10 == 0]}```python\n{kernel(number)}```\n" for number in range(100)]
    tokenizer = new_tokenizer(shown, 400)
    often, rarely = [tokenizer.tokenize(f"{lead}```python\n{kernel(7)}```\n") for lead in leads]
    code = often[often.index("```python\n") :]
    assert rarely[-len(code) :] == code
    assert len(rarely) < 2 * len(code)


def test_no_more_blocks_than_there_is_room_for():
    assert repeated_blocks(TEXTS, 1) == [HEAD]
    assert repeated_blocks(TEXTS, 0) == []


def test_a_rare_line_is_no_block():
    rare = "  a line that only two of many texts have\n"
    texts = [*TEXTS * 5, HEAD + rare, TAIL + rare]
    assert not any(rare in block for block in repeated_blocks(texts, 100))


def test_a_line_of_a_prompt_that_holds_a_figure_is_no_block():
    prompts = ["# Measured here\n- bandwidth: 6 GB/s\n- kind: CPU\n" + HEAD] * 40
    found = repeated_blocks(TEXTS, 100, prompts)
    assert not any("6 GB/s" in block for block in found)
    assert "# Measured here\n" in found
    assert any(HEAD in block for block in found)


def test_a_kernel_is_few_tokens_and_its_values_are_one_each():
    tokenizer = new_tokenizer(TEXTS, 400)
    tokens = tokenizer.tokenize(kernel(3))
    assert len(tokens) < 40
    assert {HEAD, TAIL, "v3", "v4", "3"} <= set(tokens)


@pytest.mark.parametrize("text", [kernel(77), "unseen\r\n é ☃", HEAD * 2 + "  " + TAIL, "", "\n\n"])
def test_every_text_comes_back(text):
    tokenizer = new_tokenizer(TEXTS, 400)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_statement_is_the_same_tokens_asked_for_listed_and_quoted():
    statements = ["a = F.silu(x)", "a = torch.exp(a)", "a = a + 3.0", "return torch.sin(a)"]
    prompts, replies = [], []
    for number in range(60):
        own = [statements[(number + k) % 4] for k in range(3)]
        body = "".join(f"        {statement}\n" for statement in own)
        prompts.append(f"class Model:\n    def forward(self, x):\n{body}\n")
        listed = "".join(f"{k + 1}: {statement}\n" for k, statement in enumerate(own))
        quoted = "".join(
            f"    // {k + 1}: {statement}\n    v{k + 1} = v{k} + {number}.5f;\n"
            for k, statement in enumerate(own)
        )
        replies.append(f"{listed}One pass.\n\n```python\n{HEAD}{quoted}{TAIL}```\n")
    tokenizer = new_tokenizer(replies, 500, prompts)
    asked, replied = (tokenizer.tokenize(text) for text in (prompts[0], replies[0]))
    for statement in statements[:3]:
        found = tokenizer.tokenize(f"{statement}\n")
        assert _places(found, asked) == 1
        assert _places(found, replied) == 2
    assert all(tokenizer.decode(tokenizer(t)["input_ids"]) == t for t in (*prompts, *replies))


def _places(found: list[str], tokens: list[str]) -> int:
    return sum(tokens[i : i + len(found)] == found for i in range(len(tokens)))


def test_a_tokenizer_is_the_same_in_every_process():
    """Whose sets of strings are in an order of their own."""
    program = (
        "from rl.tokens import new_tokenizer\n"
        "lists = [''.join(f'{n}: a = a * {n}.5\\n' for n in range(40))] * 9\n"
        "print(sorted(new_tokenizer(lists, 400).get_vocab().items()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_statement_that_is_often_listed_is_one_token_wherever_it_stands():
    often, rarely = "a = a + 3.0\n", "a = a * 0.125\n"
    lists = [f"1: {rarely if number == 7 else often}2: return a\n" for number in range(600)]
    tokenizer = new_tokenizer(lists, 400)
    for text in (f"1: {often}", f"        {often}", f"    // 1: {often}"):
        assert often in tokenizer.tokenize(text)
    assert rarely not in tokenizer.tokenize(f"1: {rarely}")
