"""Findings of ``dexorder doctor``, and how they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dexorder.cli.terminal import output


@dataclass(frozen=True)
class Finding:
    """Result of a check: its name, whether it passed, the observation and, after a failure, the remedy."""

    name: str
    ok: bool
    detail: str


def show(findings: Sequence[Finding], as_json: bool) -> int:
    """Print findings; return 1 if a check failed."""
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        console = output.stdout()
        for finding in findings:
            console.print("ok  " if finding.ok else "FAIL", style="green" if finding.ok else "red", end="")
            console.print(f" {finding.name}: {finding.detail}")
    return 0 if all(finding.ok for finding in findings) else 1
