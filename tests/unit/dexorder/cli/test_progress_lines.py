"""Lines of progress in a log: what happened, and now and then that nothing else has."""

from __future__ import annotations

import re
import threading

import pytest

from dexorder.cli.terminal import progress


def test_a_line_is_written_again_while_no_other_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "LONG_SILENCE_SECONDS", 3_600.0)
    lines: list[str] = []
    enough = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) == 11:
            enough.set()

    with progress.repeated(write) as written:
        written("1 of 2")
        assert enough.wait(60), lines
    first, *again = lines
    assert first == "1 of 2" and len(again) == 10, "ten times, then seldom"
    assert all(re.fullmatch(r"1 of 2, for \d+ s", each) for each in again)


def test_nothing_is_repeated_before_the_first_line_and_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.001)
    lines: list[str] = []
    with progress.repeated(lines.append):
        pass
    assert lines == [] and "progress" not in {each.name for each in threading.enumerate()}
