"""Texts are compiled in processes with limits: one that needs too much is refused, others are checked meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import pytest

from dexorder_cep import InvalidSql
from dexorder_common.model.errors import Exhausted, SuiteError
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


async def period_of(checks: TextChecks, sql: str, parameters: Mapping[str, str]) -> int:
    (found,) = await checks.periods([(sql, parameters)])
    if isinstance(found, SuiteError):
        raise found
    return found


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile one text at a time."""
    monkeypatch.setattr(text_checks, "WORKERS", 1)


def let_workers_import_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that check texts run `GREEDY`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.fixture
async def checks(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TextChecks]:
    let_workers_import_tests(monkeypatch)
    made = TextChecks(GREEDY)
    yield made
    await made.aclose()


async def test_verdict_is_that_of_the_compiler(checks: TextChecks) -> None:
    assert await period_of(checks, GOOD, {}) == 60
    assert await period_of(checks, "SELECT * FROM ticks WHERE price > 1", {}) == 0
    with pytest.raises(InvalidSql, match="clos") as refusal:
        await period_of(checks, "SELECT * FROM ohlc WHERE clos > 1", {})
    assert refusal.value.line == 1
    with pytest.raises(InvalidSql, match="unknown"):
        await period_of(checks, GOOD, {"unknown": "1"})
    with pytest.raises(RuntimeError, match="KeyError"):
        await period_of(checks, "fault", {})


@pytest.mark.parametrize("text", ["loop", "memory"])
async def test_text_that_needs_too_much_is_refused_and_others_are_checked_meanwhile(
    checks: TextChecks, text: str
) -> None:
    greedy = asyncio.create_task(period_of(checks, text, {}))
    assert await period_of(checks, GOOD, {}) == 60
    with pytest.raises(InvalidSql, match="takes more than 1 s of CPU time or 64 MiB"):
        await greedy
    assert await period_of(checks, GOOD, {}) == 60


@pytest.mark.usefixtures("one_worker")
async def test_costly_texts_of_a_batch_end_it_and_others_have_their_turn(checks: TextChecks) -> None:
    good = [f"SELECT * FROM ohlc WHERE close > {n}" for n in range(400)]
    texts = [good[0], "loop", good[0], "SELECT", "memory", good[1], "memory ", *good[2:200]]
    batch = asyncio.create_task(checks.periods([(each, {}) for each in texts]))
    await asyncio.sleep(0)
    assert await period_of(checks, GOOD, {}) == 60
    assert not batch.done(), "the other text has waited for the whole batch"
    found = await batch
    kinds = [each if isinstance(each, int) else type(each).__name__ for each in found]
    assert kinds[:7] == [60, "InvalidSql", 60, "InvalidSql", "InvalidSql", 60, "InvalidSql"]
    assert {type(each) for each in found[7:]} == {Exhausted} and len(found) == len(texts)
    assert await checks.periods([(each, {}) for each in good[200:320]]) == [60] * 120


@pytest.mark.usefixtures("one_worker")
async def test_a_client_with_many_costly_texts_delays_another_one_by_one_of_them(checks: TextChecks) -> None:
    ended: list[str] = []

    async def check(client_id: str, text: str) -> None:
        await checks.periods([(text, {})], client_id)
        ended.append(client_id)

    flood = [asyncio.create_task(check("flood", "loop" + " " * n)) for n in range(5)]
    await asyncio.sleep(0)
    await check("honest", GOOD)
    assert ended == ["flood", "flood", "honest"] or ended == ["flood", "honest"]
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert await period_of(checks, GOOD, {}) == 60


@pytest.mark.usefixtures("one_worker")
async def test_caller_who_goes_and_process_that_dies_cost_the_next_text_nothing(checks: TextChecks) -> None:
    gone = asyncio.create_task(period_of(checks, "loop", {}))
    await asyncio.sleep(0.5)
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    assert await period_of(checks, GOOD, {}) == 60
    (idle,) = checks._idle
    idle.send_signal(signal.SIGKILL)
    await idle.wait()
    assert await period_of(checks, GOOD, {}) == 60


async def test_process_is_kept_and_ends_with_the_checks(checks: TextChecks) -> None:
    await period_of(checks, GOOD, {})
    (first,) = checks._idle
    await period_of(checks, GOOD, {})
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
                await period_of(checks, f"SELECT {columns} FROM {text}", {})
            except InvalidSql as error:
                assert "takes more than" not in error.reason, (levels, columns[:200])
                raise
