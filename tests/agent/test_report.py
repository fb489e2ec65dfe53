"""What a report says of a campaign, and that nothing in it can break out of its page."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import warpsmith
from agent.journals.journal import Journal
from agent.journals.outcome import Stage, TaskReport
from agent.report.campaign import campaign_page
from agent.report.details import unpack
from agent.report.figures import dollars
from agent.report.find import page_of
from agent.report.highlight import highlighted, tokens
from agent.report.page import SHARE, Page, State, fast_curve, thinned
from agent.report.render import cell, html, markdown, milliseconds
from agent.report.rows import state_of
from agent.report.texts import Texts
from agent.types import Proposal, Usage
from sandbox.errors import ConfigError
from sandbox.types import Candidate, Language
from sandbox.words import visible
from tests.agent.scripts import campaign, make_task, script
from tests.agent.synthetic_run import HOSTILE, write_run

PLOTLY = "window.Plotly = undefined;"
"""In place of the plotting library: nothing is drawn here."""


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = (dict(attrs).get("id") or "main") if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text += data
        else:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("runs") / "first", tasks=4, candidates=8, learning=True
    )


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return page_in(run)


@pytest.fixture(scope="module")
def elements(page: Page) -> Elements:
    return Elements(html(page, PLOTLY))


def page_in(folder: Path) -> Page:
    with Journal(folder, read_only=True) as journal:
        return campaign_page(journal)


def test_the_headline_counts_confirmed_wins_and_one_for_every_other_task(page: Page) -> None:
    wins = [r for r in page.rows if r.state in (State.WIN, State.APART)]
    logs = [math.log(r.speedup.value) for r in wins if r.speedup is not None]
    assert 0 < len(wins) <= len(page.rows)
    expected = math.exp(sum(logs) / len(page.rows))
    assert page.tiles[0].interval is not None
    assert page.tiles[0].interval.value == pytest.approx(expected)
    assert page.tiles[0].value == f"{expected:.2f}x"


def test_every_task_is_a_row_of_the_table_with_its_verdict(page: Page, elements: Elements) -> None:
    rows = [a for a in elements.of("tr") if "data-row" in a]
    assert [a["data-state"] for a in rows] == [r.state.value for r in page.rows]
    for known in page.rows:
        assert known.verdict in elements.text
        assert known.name in elements.text


def test_nothing_has_one_sign_on_the_whole_page(page: Page) -> None:
    text = html(page, "")
    assert ">-<" in text
    assert re.findall(r">–<|\"–\"", text) == []


def test_the_page_needs_nothing_from_anywhere(page: Page, elements: Elements) -> None:
    for tag, attributes in elements.tags:
        for name in ("src", "href", "action", "data", "srcset"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    [policy] = [a["content"] for a in elements.of("meta") if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "url(" not in html(page, PLOTLY)


def test_no_text_of_a_candidate_or_a_model_becomes_markup(page: Page, elements: Elements) -> None:
    kinds = Counter(a.get("type") for a in elements.of("script"))
    assert kinds == {
        "application/json": 1,
        "application/octet-stream": 1 + len(page.rows),
        "module": 1,
    }
    assert HOSTILE in elements.text  # as text: a detail of a caught candidate
    assert "<" not in elements.scripts["data"]
    shown = json.loads(elements.scripts["data"])
    assert HOSTILE in shown["caught"][0]["detail"]
    assert not any(name.startswith("on") for _, a in elements.tags for name in a)


def test_details_hold_every_candidate_with_prompt_reply_source_and_verdict(
    run: Path, page: Page
) -> None:
    with Journal(run, read_only=True) as journal:
        recorded = journal.proposals(page.rows[0].task_id)
    assert page.details[0] is not None
    details = unpack(page.details[0])
    texts = details["texts"]
    assert len(details["candidates"]) == len(recorded) == 8
    for candidate, known in zip(details["candidates"], recorded, strict=True):
        assert text_of(texts, candidate["source"]) == known.proposal.candidate.source
        assert text_of(texts, candidate["reply"]) == known.proposal.reply
        asked = json.loads(known.proposal.prompt or "")
        assert [(role, text_of(texts, number)) for role, number in candidate["prompt"]] == [
            (message["role"], message["content"]) for message in asked
        ]
        assert known.evaluation is not None
        assert candidate["search"]["status"] == known.evaluation.status
    best = details["candidates"][details["best"]]
    assert details["lineage"][0] == best["n"]
    assert set(best["parents"]) <= set(details["lineage"])
    assert details["audit"]["reasons"]


def text_of(texts: dict[str, list], number: int) -> str:
    """As the page's own script puts a text together."""
    runs = texts["texts"][number]
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return "\n".join(line for first, n in pairs for line in texts["lines"][first : first + n])


def test_highlighted_lines_are_the_escaped_source(page: Page) -> None:
    assert page.details[0] is not None
    details = unpack(page.details[0])
    for candidate in details["candidates"]:
        marked = text_of(details["texts"], candidate["html"])
        parsed = Elements(marked)
        assert {tag for tag, _ in parsed.tags} == {"i"}
        assert all(set(attributes) == {"class"} for _, attributes in parsed.tags)
        assert parsed.text == text_of(details["texts"], candidate["source"])


def test_cuda_in_a_python_string_is_highlighted_as_cuda() -> None:
    source = 'SOURCE = r"""\n// rows\n__global__ void f(int n) { return 1; }\n"""\nx = "a"\n'
    lines = highlighted(source)
    assert lines is not None
    assert lines[1] == "<i class=c>// rows</i>"
    assert "<i class=k>return</i>" in lines[2]
    assert "".join(text for _, text in tokens(source)) == source


@pytest.mark.parametrize(
    "source", ["", "\n\n", '"""', 'r"""\n#include <a>', "x = 1\r\ny\\", "\t\x00'''"]
)
def test_every_source_keeps_its_lines_however_broken(source: str) -> None:
    lines = highlighted(visible(source))
    assert lines is not None
    assert len(lines) == len(visible(source).split("\n"))


def test_a_source_too_large_to_lex_is_left_plain() -> None:
    assert highlighted("x = 1\n" * 20_000) is None
    assert highlighted("x" * 5000) is None


def test_hidden_characters_become_visible() -> None:
    assert visible("a\u202eb\u200b\tc\r\nd é ü 中") == "a⟨U+202E⟩b⟨U+200B⟩\tc\nd é ü 中"


def test_equal_lines_are_kept_once() -> None:
    texts = Texts()
    first, second = texts.add("a\nb\nc"), texts.add("x\na\nb\nc")
    record = texts.record()
    assert record["lines"] == ["a", "b", "c", "x"]
    assert record["texts"] == [[0, 3], [3, 1, 0, 3]]
    assert texts.add("a\nb\nc") == first != second


def test_fast_p_steps_down_after_each_ratio() -> None:
    curve = fast_curve("c", [2.0, None, 1.0, 2.0])
    assert curve.points == [(0.0, 0.75), (1.0, 0.5), (2.0, 0.0)]


def test_a_thinned_line_keeps_its_ends() -> None:
    points = [(float(k), float(k)) for k in range(5000)]
    kept = thinned(points)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert len(kept) <= 402


def test_best_so_far_never_falls_and_reaches_what_the_search_found(page: Page) -> None:
    for curve in page.progress.values():
        heights = [y for _, y in curve.points]
        assert heights == sorted(heights)
        assert curve.points[0] == (0.0, 1.0)
    assert set(page.progress) == {"candidates", "device seconds", "US$", "tokens"}
    assert page.progress["candidates"].points[-1][0] == 32


def test_best_so_far_counts_what_known_candidates_cost(tmp_path: Path) -> None:
    campaign(tmp_path, {"a": [script(1, speedup=2.0)]})
    with Journal(tmp_path) as journal:
        [record] = journal.proposals("test/a")
        journal.record_proposals(1, [record.proposal])
    page, usage = page_in(tmp_path), record.proposal.usage
    assert page.progress["candidates"].points[-1][0] == 1
    paid = 2 * (usage.prompt_tokens + usage.completion_tokens)
    assert page.progress["tokens"].points[-1][0] == paid > 0


def test_a_request_that_brought_several_replies_took_its_seconds_once(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.record_task(make_task("a"))
        for number, seconds in enumerate((30.0, 30.0, 20.0)):
            written = Candidate("test/a", Language.CPP, script(number))
            usage = Usage(seconds=seconds)
            proposal = Proposal(written, "m", prompt="same", usage=usage)
            journal.record_proposals(0, [proposal])
        journal.record_proposals(1, [proposal])
    assert page_in(tmp_path).stages == {"proposing": 70.0}


@pytest.mark.parametrize(
    ("usd", "shown"), [(1234.5, "$1,234.50"), (0.0, "$0.00"), (0.01, "$0.01"), (0.0042, "$0.0042")]
)
def test_a_cost_below_a_cent_is_not_nothing(usd: float, shown: str) -> None:
    assert dollars(usd) == shown


def test_training_curves_come_from_the_updates(page: Page) -> None:
    curves = {curve.name: curve for curve in page.training}
    assert list(curves) == ["mean reward", "right replies", "reward hacks", "reward: correct"]
    assert [x for x, _ in curves["mean reward"].points] == list(range(1, 9))
    assert [curve.note for curve in curves.values()] == ["", SHARE, SHARE, ""]
    assert [curve.name for curve in page.training_more] == ["loss", "gradient norm", "seconds"]


def test_a_cheat_is_listed_with_what_gave_it_away(page: Page) -> None:
    assert page.caught
    assert page.caught[0].number == 1
    assert "single-set rounds" in page.caught[0].layers


def test_one_task_is_no_tasks(tmp_path: Path) -> None:
    page = page_in(write_run(tmp_path / "run", tasks=1, candidates=2))
    assert 'aria-live="polite">1 task</span>' in html(page, "")
    assert "1 tasks" not in html(page, "")


def test_a_run_under_way_says_so_and_counts_what_is_confirmed(tmp_path: Path) -> None:
    page = page_in(write_run(tmp_path / "run", tasks=3, candidates=6, finished=False))
    assert page.notices[0].startswith("Partial: 2 of 3 tasks not finished")
    assert page.tiles[0].value == "1.00x"
    assert {row.state for row in page.rows} <= {
        State.RUNNING,
        State.CLAIM,
        State.EVEN,
        State.FAILED,
    }
    assert Elements(html(page, PLOTLY)).of("table")


def test_a_run_without_a_task_is_a_page_too(tmp_path: Path) -> None:
    page = page_in(write_run(tmp_path / "run", tasks=0))
    assert "Nothing is recorded yet" in page.notices[0]
    assert "Nothing is recorded yet" in Elements(html(page, PLOTLY)).text


def test_a_campaign_of_the_loop_itself_is_reported(tmp_path: Path) -> None:
    sources = {
        "a": [script(1, speedup=1.5), script(2, status="WRONG_VALUE"), script(3, speedup=2.0)],
        "b": [script(4, speedup=0.7)],
        "c": [],
        "d": [script(5, status="TIMEOUT")],
    }
    campaign(tmp_path / "run", sources)
    page = page_in(tmp_path / "run")
    assert [row.state for row in page.rows] == [State.WIN, State.EVEN, State.FAILED, State.FAILED]
    assert [row.verdict for row in page.rows] == ["win", "no win", "unsupported", "none correct"]
    assert page.tiles[0].value == f"{2.0 ** (1 / 4):.2f}x"
    assert page.rows[0].against_best == pytest.approx(2.0 / 1.25)


@pytest.mark.parametrize(
    ("stage", "tried", "state"),
    [
        (Stage.STOPPED, 0, State.UNTRIED),
        (Stage.STOPPED, 1, State.FAILED),
        (Stage.UNSUPPORTED, 0, State.FAILED),
        (Stage.WAITING, 0, State.RUNNING),
    ],
)
def test_a_task_that_was_not_tried_is_no_failure(stage: Stage, tried: int, state: State) -> None:
    assert state_of(TaskReport("test/a", stage, tried)) is state


def test_the_same_journal_gives_the_same_page(run: Path, page: Page) -> None:
    assert html(page_in(run), PLOTLY) == html(page, PLOTLY)


def test_the_markdown_is_a_table_nothing_can_break(page: Page) -> None:
    text = markdown(page)
    table = [line for line in text.splitlines() if line.startswith("| kernelbench/")]
    assert len(table) == len(page.rows)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 7 for line in table)
    assert f"**{page.tiles[0].value}**" in text
    assert "<script" not in text
    assert cell("a|b\n<i>`") == "a\\|b &lt;i>'"


def test_latencies_are_shown_in_their_unit() -> None:
    shown = [milliseconds(v) for v in (0.0123, 0.5, 4.56, 1234.0, None)]
    assert shown == ["12.3 µs", "500 µs", "4.56 ms", "1.23 s", "-"]
    shown = [milliseconds(v) for v in (0.9994, 0.9996, 999.6, 123_456.0)]
    assert shown == ["999 µs", "1.00 ms", "1.00 s", "123 s"]


# --- the command ----------------------------------------------------------------------------------


def test_the_command_writes_markdown_without_a_plotting_library(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SystemExit) as end:
        warpsmith.main(["report", str(run), "--markdown"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("**first** (campaign)")
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[report\]'"):
        warpsmith.report(run)


@pytest.mark.parametrize(("name", "message"), [("frist", "no such run"), ("scored", "no such run")])
def test_a_name_that_means_nothing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        page_of(name)


def test_the_whole_page_is_written_with_the_plotting_library(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="needs the report extra")
    path = warpsmith.report(run, tmp_path / "deep" / "page.html")
    text = path.read_text()
    assert 1e6 < len(text) < 3e6  # plotly.js, compressed
    assert len(Elements(text).of("tr")) > 4
