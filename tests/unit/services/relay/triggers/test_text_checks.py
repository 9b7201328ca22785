"""Texts are compiled in processes with limits: one that needs too much is refused, others are checked meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from dexorder_cep import InvalidSql
from dexorder_relay.triggers import text_checks
from dexorder_relay.triggers.text_checks import TextChecks
from tests.paths import ROOT

GOOD = "SELECT * FROM ohlc WHERE close > 1"
COLUMNS = (
    "*",
    "ticker",
    "CONCAT(ticker, ticker)",
    "CASE WHEN close > 1 THEN ticker END AS c",
    "LAG(close, 999) OVER (PARTITION BY ticker ORDER BY ts) AS l",
    "close + high * low AS s",
)
GREEDY = "tests.unit.services.relay.triggers.greedy_worker"


@pytest.fixture
async def checks(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TextChecks]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = TextChecks(GREEDY)
    yield made
    await made.aclose()


async def test_verdict_is_that_of_the_compiler(checks: TextChecks) -> None:
    assert await checks.period_seconds(GOOD, {}) == 60
    assert await checks.period_seconds("SELECT * FROM ticks WHERE price > 1", {}) == 0
    with pytest.raises(InvalidSql, match="clos") as refusal:
        await checks.period_seconds("SELECT * FROM ohlc WHERE clos > 1", {})
    assert refusal.value.line == 1
    with pytest.raises(InvalidSql, match="unknown"):
        await checks.period_seconds(GOOD, {"unknown": "1"})
    with pytest.raises(RuntimeError, match="KeyError"):
        await checks.period_seconds("fault", {})


@pytest.mark.parametrize("text", ["loop", "memory"])
async def test_text_that_needs_too_much_is_refused_and_others_are_checked_meanwhile(
    checks: TextChecks, text: str
) -> None:
    greedy = asyncio.create_task(checks.period_seconds(text, {}))
    assert await checks.period_seconds(GOOD, {}) == 60
    with pytest.raises(InvalidSql, match="takes more than 1 s of CPU time or 64 MiB"):
        await greedy
    assert await checks.period_seconds(GOOD, {}) == 60


async def test_caller_who_goes_and_process_that_dies_cost_the_next_text_nothing(
    checks: TextChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_checks, "WORKERS", 1)
    gone = asyncio.create_task(checks.period_seconds("loop", {}))
    await asyncio.sleep(0.5)
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    assert await checks.period_seconds(GOOD, {}) == 60
    (idle,) = checks._idle
    idle.send_signal(signal.SIGKILL)
    await idle.wait()
    assert await checks.period_seconds(GOOD, {}) == 60


async def test_process_is_kept_and_ends_with_the_checks(checks: TextChecks) -> None:
    await checks.period_seconds(GOOD, {})
    (first,) = checks._idle
    await checks.period_seconds(GOOD, {})
    assert checks._idle == [first]
    await checks.aclose()
    assert first.returncode == -signal.SIGKILL


async def test_what_the_compiler_accepts_or_refuses_by_itself_is_far_below_the_limits(checks: TextChecks) -> None:
    """The limits of the process are a second line: the compiler counts columns and nodes before it makes them."""
    draw = random.Random(40)
    for levels in [*range(10)] * 10:
        columns = ", ".join(draw.choices(COLUMNS, k=draw.choice((1, 6, 40, 300))))
        text = "ohlc"
        for _ in range(levels):
            text = f"(SELECT {columns} FROM {text})"
        with suppress(InvalidSql):
            try:
                await checks.period_seconds(f"SELECT {columns} FROM {text}", {})
            except InvalidSql as error:
                assert "takes more than" not in error.reason, (levels, columns[:200])
                raise
