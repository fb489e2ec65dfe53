"""Reports in a real browser: drawn, sorted, filtered, opened, printed, and never broken out of.

Needs selenium, plotly and Chromium with its driver (Debian: apt-get install chromium
chromium-driver). Screenshots go to the folder that WARPSMITH_SCREENSHOTS names.
"""

from __future__ import annotations

import base64
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium")
pytest.importorskip("plotly", reason="needs the report extra")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import warpsmith
from kernelbench.bench import Bench
from kernelbench.results import EVALUATIONS, append_record
from kernelbench.submissions import Submission
from sandbox.types import Candidate, EvalConfig, Language, Task
from tests.agent.synthetic_run import HOSTILE, write_run
from tests.kernelbench.bench_records import HERE, row

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SHOTS = os.environ.get("WARPSMITH_SCREENSHOTS")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromium-driver"),
]
LARGE = (250, 100)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    # Without it a page scrolls smoothly, away from under the pointer.
    options.add_argument("--force-prefers-reduced-motion")
    options.add_argument("--window-size=1500,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(str(DRIVER))) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "softmax-h200"
    return warpsmith.report(write_run(folder, tasks=14, candidates=16, learning=True))


def wait(browser: webdriver.Chrome, script: str, timeout_s: float = 30.0) -> float:
    """Seconds until the script returns something true."""
    began = time.monotonic()
    while not browser.execute_script(f"return {script}"):
        assert time.monotonic() - began < timeout_s, script
        time.sleep(0.02)
    return time.monotonic() - began


def load(browser: webdriver.Chrome, page: Path, fragment: str = "") -> float:
    """Seconds until every plot is drawn."""
    browser.get("about:blank")
    began = time.monotonic()
    browser.get(page.resolve().as_uri() + fragment)
    wait(browser, "document.querySelectorAll('.plot:not([data-drawn])').length === 0", 60)
    return time.monotonic() - began


def shoot(browser: webdriver.Chrome, name: str, *, whole: bool = False) -> None:
    if SHOTS is None:
        return
    options: dict[str, Any] = {"format": "png"}
    if whole:
        size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        options |= {"captureBeyondViewport": True, "clip": {**size, "x": 0, "y": 0, "scale": 1}}
    data = browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
    Path(SHOTS, f"{name}.png").write_bytes(base64.b64decode(data))


def names(browser: webdriver.Chrome) -> list[str]:
    found = browser.find_elements(By.CSS_SELECTOR, "#table tbody tr:not([hidden]) .open")
    return [element.text for element in found]


def errors(browser: webdriver.Chrome) -> list[str]:
    return [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]


@pytest.fixture
def opened(browser: webdriver.Chrome, page: Path) -> Callable[[str], webdriver.Chrome]:
    def call(fragment: str = "") -> webdriver.Chrome:
        load(browser, page, fragment)
        return browser

    return call


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_drawn_without_an_error_or_a_request(browser, page, theme):
    scheme = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get_log("performance")
    load(browser, page)
    shoot(browser, f"page-{theme}")
    shoot(browser, f"whole-{theme}", whole=True)
    assert errors(browser) == []
    asked = [e["message"] for e in browser.get_log("performance") if '"http' in e["message"]]
    assert not [m for m in asked if "Network.requestWillBeSent" in m]
    drawn = browser.execute_script("return document.querySelectorAll('.plot .main-svg').length")
    assert drawn >= 5 + 6
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 247, 248)", "dark": "rgb(13, 16, 19)"}[theme]


def test_nothing_is_cut_off_beside_a_long_name(opened):
    browser = opened()
    boxes = "[...document.querySelectorAll('.scroll, .tile')]"
    cut = "filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    assert browser.execute_script(f"return {boxes}.{cut}") == []


def test_long_names_leave_the_plot_most_of_its_width(opened):
    browser = opened()
    plot = "document.querySelector('#plot-speedups')"
    browser.execute_script(f"{plot}.scrollIntoView()")
    wide = browser.execute_script(f"return {plot}._fullLayout.xaxis._length / {plot}.clientWidth")
    assert wide > 0.5
    named = browser.execute_script(
        f"return [...{plot}.querySelectorAll('.ytick text')].map(e => e.textContent)"
    )
    assert [len(name) for name in named if name.endswith("…")] == [36]


def test_what_else_the_trainer_recorded_is_drawn_where_it_is_opened(opened):
    browser = opened()
    plots = "[...document.querySelectorAll('#plots-training-more .plot')]"
    assert browser.execute_script(f"return {plots}.length") == 0
    browser.find_element(By.CSS_SELECTOR, "#training-more summary").click()
    wait(browser, f"{plots}.length === 3 && {plots}.every(e => e.dataset.drawn)")
    widths = browser.execute_script(f"return {plots}.map(e => e._fullLayout.width)")
    assert min(widths) > 200
    shoot(browser, "training")


def test_samples_of_a_bench_are_no_search(browser, tmp_path):
    task = Task("kernelbench/level1/1_a", "# a", "cuda")
    kernel = Candidate(task.id, Language.TRITON, "# k")
    for sample, speedup in enumerate((0.1, 2.0, None)):
        found = row(task.id, speedup, sample=sample, task_hash=task.hash)
        ids = {"candidate_id": kernel.id, "config_id": EvalConfig().id}
        kept = replace(found, evaluation=replace(found.evaluation, **ids))
        append_record(tmp_path / EVALUATIONS, kept)
    given = [Submission(kernel, n, "k.py") for n in range(3)]
    Bench([task], given, EvalConfig(), HERE, tmp_path, {"input": "k"}).write()
    load(browser, warpsmith.report(tmp_path))
    assert browser.find_element(By.ID, "count").text == "1 task"
    labels = (
        "[...document.querySelectorAll('#table .axis text')].map(e => e.getBoundingClientRect())"
    )
    touch = "some((box, place, all) => place > 0 && box.left < all[place - 1].right)"
    assert not browser.execute_script(f"return {labels}.{touch}")
    browser.find_element(By.CSS_SELECTOR, "#table tbody tr .open").click()
    wait(browser, "document.querySelector('#plot-task[data-drawn]') !== null")
    text = browser.find_element(By.ID, "sheet").text
    assert "Sample 0" in text
    assert not [word for word in ("search", "best so far", "Candidate") if word in text]
    assert not browser.find_elements(By.CSS_SELECTOR, "#plot-task .js-line")
    assert errors(browser) == []


def test_a_heading_sorts_and_the_plot_follows(opened):
    browser = opened()
    speedups = [float(x) for x in sorted_keys(browser, "speedup") if x]
    assert speedups == sorted(speedups, reverse=True)
    browser.find_element(By.CSS_SELECTOR, "[data-sort=task]").click()
    tasks = sorted_keys(browser, "task")
    assert [int(t.split("/")[2].split("_")[0]) for t in tasks if "level1" in t] == [1, 4, 7, 10, 13]
    head = browser.find_element(By.CSS_SELECTOR, "[data-sort=task]").find_element(By.XPATH, "..")
    assert head.get_attribute("aria-sort") == "ascending"
    first = browser.find_element(By.CSS_SELECTOR, "#table tbody tr .open").text.split("/")[-1]
    wait(browser, f"document.querySelector('#plot-speedups .ytick text').textContent === '{first}'")
    browser.find_element(By.CSS_SELECTOR, "[data-sort=task]").click()
    assert sorted_keys(browser, "task") == tasks[::-1]


def sorted_keys(browser: webdriver.Chrome, column: str) -> list[str]:
    rows = browser.find_elements(By.CSS_SELECTOR, "#table tbody tr")
    return [row.get_attribute(f"data-{column}-key") or "" for row in rows]


def test_words_and_states_filter(opened):
    browser = opened()
    everything = names(browser)
    browser.find_element(By.ID, "query").send_keys("level2")
    some = names(browser)
    assert some
    assert all("level2" in name for name in some)
    assert browser.find_element(By.ID, "count").text == f"{len(some)} of {len(everything)} tasks"
    browser.find_element(By.ID, "query").send_keys(" zzz")
    assert names(browser) == []
    browser.find_element(By.ID, "clear").click()
    assert names(browser) == everything
    chip = browser.find_element(By.CSS_SELECTOR, ".chip.win")
    chip.click()
    assert len(names(browser)) == int(chip.find_element(By.TAG_NAME, "b").text)


def test_a_task_opens_with_its_source_diff_prompt_reply_and_verdict(opened):
    browser = opened()
    browser.find_element(By.CSS_SELECTOR, "#table tbody tr .open").click()
    wait(browser, "document.querySelector('#sheet .code') !== null")
    wait(browser, "document.querySelector('#plot-task[data-drawn]') !== null")
    time.sleep(0.3)
    shoot(browser, "task-source")
    source = browser.find_element(By.CSS_SELECTOR, "#sheet .code").text
    assert "__global__" in source
    assert browser.find_elements(By.CSS_SELECTOR, "#sheet .code i.k")
    tab(browser, "Diff to parent")
    assert browser.find_elements(By.CSS_SELECTOR, ".diff .added")
    assert browser.find_elements(By.CSS_SELECTOR, ".diff .removed")
    shoot(browser, "task-diff")
    folds = browser.find_elements(By.CSS_SELECTOR, ".diff .fold")
    before = len(browser.find_elements(By.CSS_SELECTOR, ".diff > div"))
    folds[0].click()
    assert len(browser.find_elements(By.CSS_SELECTOR, ".diff > div")) > before
    tab(browser, "Prompt")
    assert "Make this faster." in browser.find_element(By.ID, "sheet").text
    tab(browser, "Reply")
    assert "The reduction is the bottleneck" in browser.find_element(By.ID, "sheet").text
    tab(browser, "Verdict")
    shoot(browser, "task-verdict")
    text = browser.find_element(By.ID, "sheet").text
    assert "agree with the float64 truth" in text
    assert "Confirmation: measured again" in text
    assert errors(browser) == []


def test_what_was_measured_again_is_inside_the_plot_of_its_search(browser, tmp_path):
    load(browser, warpsmith.report(Path("benchmarks/demo"), tmp_path / "demo.html"))
    causal = "find(e => e.textContent.includes('causal'))"
    browser.execute_script(f"[...document.querySelectorAll('.open')].{causal}.click()")
    wait(browser, "document.querySelector('#plot-task[data-drawn]') !== null")
    plot = "document.querySelector('#plot-task')"
    axis = f"{plot}._fullLayout.yaxis"
    highest = f"Math.max(...{plot}.data.flatMap(trace => trace.y).filter(y => y))"
    from_top = browser.execute_script(f"return {axis}.d2p({highest})")
    assert from_top > 8  # the mark's radius, in pixels


def tab(browser: webdriver.Chrome, name: str) -> None:
    browser.find_element(By.CSS_SELECTOR, f"[data-tab='{name}']").click()


def test_a_diff_is_what_differs(opened):
    """The diff's two sides, put together again, are the two sources."""
    browser = opened()
    browser.find_element(By.CSS_SELECTOR, "#table tbody tr .open").click()
    wait(browser, "document.querySelector('#sheet .code') !== null")
    tab(browser, "Diff to parent")
    while folds := browser.find_elements(By.CSS_SELECTOR, ".diff .fold"):
        folds[0].click()
    rows = "[...document.querySelectorAll('%s')].map(row => row.lastChild.textContent).join('\\n')"
    old, new = (
        browser.execute_script("return " + rows % f".diff > div:not(.{kind})")
        for kind in ("added", "removed")
    )
    tab(browser, "Source")
    code = (
        "return [...document.querySelectorAll('.code > div')].map(d => d.textContent).join('\\n')"
    )
    assert browser.execute_script(code) == new
    assert old != new


def test_a_hostile_source_breaks_nothing(opened):
    browser = opened()
    title = browser.title
    browser.find_element(By.CSS_SELECTOR, "button.link[data-candidate]").click()
    wait(browser, "document.querySelector('#sheet .code') !== null")
    assert HOSTILE in browser.find_element(By.CSS_SELECTOR, "#sheet .code").text
    for name in ("Verdict", "Reply", "Prompt"):
        tab(browser, name)
        shown = "document.querySelector('#sheet [role=tabpanel]').textContent"
        assert HOSTILE in browser.execute_script(f"return {shown}")
    shoot(browser, "task-cheat")
    assert browser.title == title != "broken"
    assert browser.execute_script("return document.querySelectorAll('#sheet script').length") == 0


def test_a_link_opens_its_task_and_escape_closes_it(opened, page):
    browser = opened()
    browser.find_element(By.CSS_SELECTOR, "#table tbody tr .open").click()
    wait(browser, "document.querySelector('#sheet .code') !== null")
    fragment = browser.execute_script("return location.hash")
    load(browser, page, fragment)
    wait(browser, "document.querySelector('#sheet[open] .code') !== null")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait(browser, "!document.querySelector('#sheet').open")
    wait(browser, "location.hash === ''")


def test_the_theme_can_be_changed(opened):
    browser = opened()
    dark = "getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(f"return {dark}")
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script(f"return {dark}") != before


def test_it_prints_light_and_whole(opened):
    browser = opened()
    browser.execute_script("document.documentElement.dataset.theme = 'dark'")
    data = base64.b64decode(
        browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    )
    assert data.startswith(b"%PDF")
    if SHOTS is not None:
        Path(SHOTS, "page.pdf").write_bytes(data)


@pytest.mark.alone
def test_250_tasks_of_100_candidates_do_not_lag(browser, tmp_path, record_property):
    tasks, candidates = LARGE
    run = write_run(tmp_path / "large", tasks, candidates)
    began = time.monotonic()
    path = warpsmith.report(run)
    made_s, size_mb = time.monotonic() - began, path.stat().st_size / 1e6
    drawn_s = load(browser, path)
    shoot(browser, "large")
    began = time.monotonic()
    browser.find_element(By.CSS_SELECTOR, "[data-sort=task]").click()
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
    sorted_s = time.monotonic() - began
    began = time.monotonic()
    browser.find_element(By.CSS_SELECTOR, "#table tbody tr .open").click()
    wait(browser, "document.querySelector('#sheet .code') !== null")
    opened_s = time.monotonic() - began
    shoot(browser, "large-task")
    for name, value in {
        "made_s": made_s,
        "size_mb": size_mb,
        "drawn_s": drawn_s,
        "sorted_s": sorted_s,
        "opened_s": opened_s,
    }.items():
        record_property(name, round(value, 2))
        print(f"{name}: {value:.2f}")
    assert size_mb < 60
    assert drawn_s < 15
    assert sorted_s < 2
    assert opened_s < 3
    assert errors(browser) == []
