"""What `warpsmith doctor` prints: a line a finding, with the command that mends it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from sandbox.doctor import Finding


def findings_table(findings: Iterable[Finding]) -> Table:
    table = Table("part", "state", "detail", "remedy")
    for finding in findings:
        state = "ok" if finding.ok else "missing" if finding.needed else "-"
        table.add_row(finding.name, state, finding.detail, finding.remedy)
    return table
