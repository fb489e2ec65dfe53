"""A page as one HTML file, or as Markdown. Pure: the same page gives the same text.

The file asks no network for anything, and cannot: its content security policy allows two scripts,
by their hashes, and no address. So what a candidate or a model wrote stays text even where an
escape were forgotten. Plots are drawn by plotly.js, which comes out of the plotly package.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from agent.report.glyph import axis, glyph, scale_of
from agent.report.page import STATE_WORDS, Page, Row
from sandbox.errors import ConfigError, install
from sandbox.figures import Interval
from sandbox.records import to_record
from sandbox.words import number_of

SCRIPTS = ("base.js", "charts.js", "table.js", "source.js", "task.js", "main.js")
"""Of one module, in this order."""
STYLES = ("colours.css", "page.css", "task.css", "print.css")
IN_DETAILS = ("details",)
SHOWN_ROWS = 60
"""Of the Markdown summary's table."""
SHOWN_CAUGHT = 100
"""Of the page's list of cheats; all are among their tasks' candidates."""


def html(page: Page, plotly: str) -> str:
    """The whole file; `plotly` is the plotting library's script."""
    script = "\n".join(map(_asset, SCRIPTS))
    scale = scale_of(page.rows)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)} {_hash(plotly)}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return (
        _environment(escape=True)
        .get_template("page.html.j2")
        .render(
            page=page,
            policy=policy,
            style=Markup("\n".join(map(_asset, STYLES))),
            script=Markup(script),
            plotly=Markup(base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode()),
            data=Markup(in_script(_data(page))),
            scale=scale,
            axis=axis(scale),
            most_caught=SHOWN_CAUGHT,
        )
    )


def markdown(page: Page) -> str:
    """Headline, table and command, for a README."""
    template = _environment(escape=False).get_template("summary.md.j2")
    rows = sorted(page.rows, key=lambda row: -(row.speedup.value if row.speedup else 0.0))
    text = template.render(page=page, rows=rows[:SHOWN_ROWS], more=len(rows[SHOWN_ROWS:]))
    return text.strip() + "\n"


def plotly_script() -> str:
    """plotly.js as its Python package ships it; raises ConfigError without that."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(
            f"a page needs plotly, which is not installed: {install('report')} "
            "(--markdown needs nothing)"
        ) from error
    return str(get_plotlyjs())


def in_script(record: object) -> str:
    """JSON that may stand in a script element: no `<` can end it or begin a comment."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def interval_text(interval: Interval | None) -> str:
    return "-" if interval is None else str(interval)


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def milliseconds(value: float | None) -> str:
    """`12.3 µs`, `4.56 ms`, `1.2 s`: three significant digits."""
    if value is None:
        return "-"
    for unit, factor in (("µs", 1e3), ("ms", 1.0)):
        if value * factor < 999.5:  # what is rounded up to 1000 has no three digits
            return f"{value * factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{value / 1e3:#.3g}".rstrip(".") + " s"


def cell(text: object) -> str:
    """Markdown's table cells: no line ends, no bars, no HTML."""
    plain = " ".join(str(text).split())
    for character, word in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "'")):
        plain = plain.replace(character, word)
    return plain


def _data(page: Page) -> dict[str, Any]:
    """What scripts read at once; the tasks' details have elements of their own."""
    record: dict[str, Any] = to_record(page)
    for name in IN_DETAILS:
        del record[name]
    return record | {"words": {state.value: word for state, word in STATE_WORDS.items()}}


def _asset(name: str) -> str:
    return (resources.files("agent.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _environment(*, escape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("agent.report", "assets"),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "interval": interval_text,
        "ratio": ratio,
        "ms": milliseconds,
        "cell": cell,
        "sortable": sortable,
        "glyph": glyph,
        "number_of": number_of,
    }
    return environment


def sortable(row: Row, column: str) -> str:
    """What a column is sorted by: a number, nothing where there is none, or lower-case text."""
    values: dict[str, float | int | str | None] = {
        "task": row.task_id.lower(),
        "state": list(STATE_WORDS).index(row.state),
        "speedup": None if row.speedup is None else row.speedup.value,
        "best": row.against_best,
        "eager": row.eager_ms,
        "ms": row.best_ms,
        "tried": row.tried,
        "kind": f"{row.kind} {row.language}",
        "precision": row.precision,
        "doubts": row.doubts,
    }
    value = values[column]
    return "" if value is None else str(value)
