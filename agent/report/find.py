"""The report of what a name means: a campaign under runs/, a bench under bench/, or a path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.journals.journal import FILE, Journal
from agent.report import render
from agent.report.bench import bench_page, read_report, reference_curve
from agent.report.campaign import campaign_page
from agent.report.page import Page
from agent.runs import RUNS, find_run
from kernelbench.results import EVALUATIONS, REFERENCES, SUMMARY
from sandbox.cache import write_text
from sandbox.errors import ConfigError

BENCHES = Path("bench")


def page_of(name: str, references: Sequence[Path] = ()) -> tuple[Page, Path]:
    """With the folder it is about; raises ConfigError where the name means nothing.

    `references` are folders of benches whose fast_p is drawn beside the page's own.
    """
    curves = [reference_curve(folder) for folder in references]
    bench = find_bench(name)
    if bench is not None:
        return bench_page(bench, curves), bench
    folder = find_run(name, RUNS)
    with Journal(folder, read_only=True) as journal:
        return campaign_page(journal, curves), folder


def find_bench(name: str) -> Path | None:
    """A run goes before a bench of the same name, a path to a bench before a run."""
    if _is_bench(Path(name)):
        return Path(name)
    is_run = (RUNS / name / FILE).is_file()  # KernelBench keeps its own runs in such a folder too
    if not is_run and _is_bench(BENCHES / name):
        return BENCHES / name
    for folder in (Path(name), BENCHES / name):
        if (folder / SUMMARY).is_file() and not is_run:
            if _is_over(folder):
                return folder
            raise ConfigError(
                f"{folder}: a bench that has evaluated nothing yet; its command goes on with it"
            )
    return None


def _is_bench(folder: Path) -> bool:
    return any((folder / file).is_file() for file in (EVALUATIONS, REFERENCES))


def _is_over(folder: Path) -> bool:
    """Whether a bench without a record has its figures all the same: of a campaign that won
    nothing.
    """
    try:
        return not read_report(folder).waiting
    except ConfigError:
        return False


def summary_of(name: str, references: Sequence[Path] = ()) -> str:
    """Markdown; raises ConfigError where the name means nothing."""
    page, _ = page_of(name, references)
    return render.markdown(page)


def write_report(
    name: str, to: Path | None, *, markdown: bool, references: Sequence[Path] = ()
) -> Path:
    """By default to report.html (report.md) in the run's folder; returns the file.

    Raises ConfigError where the name means nothing, a page's plotting library is missing, or the
    file cannot be written.
    """
    plotly = "" if markdown else render.plotly_script()
    page, folder = page_of(name, references)
    path = to or folder / ("report.md" if markdown else "report.html")
    text = render.markdown(page) if markdown else render.html(page, plotly)
    try:
        # Names of files, and so of tasks, need not be UTF-8.
        write_text(path, text, errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return path
