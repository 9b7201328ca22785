"""Our engine against the recorded answers of real Flink (tests/peers/flink): same rows, same order, same refusals."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

import pytest

from dexorder_cep import CompiledTrigger, InvalidSql, compile_trigger
from dexorder_cep.compile.arithmetic import TriggerFailed
from dexorder_cep.compile.trigger import plain_value
from dexorder_cep.run.account import Account
from dexorder_cep.run.runs import start_run
from dexorder_cep.run.stream import Stream
from tests.paths import ROOT

RECORDED: dict[str, Any] = json.loads((ROOT / "tests/peers/flink/recorded.json").read_text())
CASES: dict[str, dict[str, Any]] = RECORDED["cases"]
MILLISECOND_NS = 1_000_000
END_NS = (2**63 - 1) * MILLISECOND_NS
"""Watermark of Flink at the end of its input."""

EXTENSIONS: dict[str, str] = {
    "refused_prev": "PREV is an extension",
    "refused_reserved_close": "close and open need no back quotes",
    "refused_condition_alone": "a condition alone",
    "refused_crosses": "CROSSES ABOVE and CROSSES BELOW",
    "refused_named_value": "values of parameters",
    "refused_named_value_of_lag": "values of parameters",
}
"""Queries that Flink refuses and we accept on purpose."""
NOT_SUPPORTED: dict[str, str] = {
    "subset_without_use": "SUBSET",
    "refused_subset": "SUBSET, which Flink 2.2.1 reads and takes for the last row",
    "rowtime_in_define": "MATCH_ROWTIME in DEFINE has no meaning before the match ends",
}
"""Queries that Flink accepts and we refuse."""
DIFFERENT: dict[str, str] = {}
"""Queries with other rows than Flink's."""
EARLIER = {"refused_compare_text_number", "refused_negative_offset"}
"""Queries that fail in Flink as soon as a row comes, and that we refuse."""


def milliseconds(value: Any, kind: str) -> Any:
    """Return a value as the recording has it: points in time in milliseconds."""
    value = plain_value(value)
    return value // MILLISECOND_NS if kind.startswith("TIMESTAMP") and value is not None else value


def run(trigger: CompiledTrigger, name: str) -> list[list[Any]]:
    """Feed rows as Flink does: one watermark for all tickers after each row, and the largest one at the end."""
    found: list[list[Any]] = []
    rows, delay_ms = RECORDED["rows"][name]["rows"], RECORDED["rows"][name]["delay_ms"]
    lanes: dict[str, tuple[Stream, Any]] = {}
    watermark = -(2**63)

    def emit(result: Any) -> None:
        for row in result.rows if result else ():
            found.append([milliseconds(v, column.type) for v, column in zip(row, trigger.columns, strict=True)])

    def release(until: int) -> None:
        for stream, each in lanes.values():
            released = stream.release(until)
            for row in released:
                stream.rows.append(row)
                emit(each.on_row(stream, stream.next - 1, row, False))
            if released or any(type(stage).__name__ == "WindowStage" for stage in getattr(each, "_stages", ())):
                for result in each.on_time(stream, until, 0):
                    emit(result)

    for ticker, time_ms, *values in rows:
        if ticker not in lanes:
            # The stream's own watermark is held back: this test releases rows.
            lanes[ticker] = Stream(ticker, -END_NS, trigger.order), start_run(trigger, ticker, Account())
        time_ns = time_ms * MILLISECOND_NS
        if time_ns <= watermark and hasattr(lanes[ticker][1], "on_late"):
            lanes[ticker][1].on_late((time_ns, *values))
        if time_ns > watermark:
            lanes[ticker][0].offer((time_ns, *values))
            watermark = max(watermark, time_ns - delay_ms * MILLISECOND_NS)
            release(watermark)
    release(END_NS)
    return found


def fired(name: str) -> dict[str, str]:
    return {"fire": "level"} if not CASES[name]["sql"].startswith("MATCH") else {}


def same(ours: Any, flinks: Any, kind: str) -> bool:
    if kind.startswith("DECIMAL") and None not in (ours, flinks):  # Flink's CSV has no zeros at the end
        return Decimal(ours) == Decimal(flinks)
    if isinstance(ours, float) and isinstance(flinks, float):
        return ours == flinks or math.isclose(ours, flinks, rel_tol=1e-12) or (ours != ours and flinks != flinks)
    return type(ours) is type(flinks) and ours == flinks


def kept_type(flink: str) -> str:
    return flink.replace(" *ROWTIME*", "").replace(" NOT NULL", "").replace("VARCHAR(2147483647)", "STRING")


ANSWERED = [name for name, case in CASES.items() if "rows" in case]
REFUSED = [name for name, case in CASES.items() if "refused" in case]
FAILED = [name for name, case in CASES.items() if "failed" in case]


@pytest.mark.parametrize("name", ANSWERED)
def test_rows_are_flinks_in_flinks_order(name: str) -> None:
    case = CASES[name]
    if name in NOT_SUPPORTED:
        with pytest.raises(InvalidSql):
            compile_trigger(case["sql"], {})
        return
    trigger = compile_trigger(case["sql"], fired(name))
    assert [[each.name, each.type] for each in trigger.columns] == [[n, kept_type(t)] for n, t in case["columns"]]
    ours, flinks = run(trigger, case["reads"]), case["rows"]
    if case["reads"] == "two":  # Flink gives no order between tickers
        ours, flinks = (sorted(each, key=lambda row: row[0]) for each in (ours, flinks))
    equal = len(ours) == len(flinks) and all(
        same(a, b, column.type)
        for x, y in zip(ours, flinks, strict=True)
        for a, b, column in zip(x, y, trigger.columns, strict=True)
    )
    assert equal is (name not in DIFFERENT), f"ours {ours[:5]}... ({len(ours)}), Flink {flinks[:5]}... ({len(flinks)})"


@pytest.mark.parametrize("name", REFUSED)
def test_what_flink_refuses_is_refused_with_line_and_column(name: str) -> None:
    sql = CASES[name]["sql"]
    if name in EXTENSIONS:
        compile_trigger(sql, dict.fromkeys(re.findall(r":(\w+)", sql), "1"))
        return
    with pytest.raises(InvalidSql) as refusal:
        compile_trigger(sql, {})
    lines = sql.split("\n")
    assert 1 <= refusal.value.line <= len(lines)
    assert 1 <= refusal.value.column <= len(lines[refusal.value.line - 1]) + 1
    assert refusal.value.reason


@pytest.mark.parametrize("name", FAILED)
def test_what_fails_flinks_job_suspends_the_trigger(name: str) -> None:
    if name in EARLIER:
        with pytest.raises(InvalidSql):
            compile_trigger(CASES[name]["sql"], {})
        return
    trigger = compile_trigger(CASES[name]["sql"], {})
    with pytest.raises(TriggerFailed):
        run(trigger, CASES[name]["reads"])


def test_recording_is_large_enough() -> None:
    assert len(ANSWERED) >= 60
    assert len(REFUSED) >= 40
