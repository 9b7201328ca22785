"""A stage with real agents as processes: every point once in the table, whatever is killed; and its failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from dexorder.udf import run_function
from dexorder.udf.functions.resample import Resample
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.commit_state import CommitState, state_of
from dexorder_common.lake.tables import DEAD_LETTERS, UDF_OUTPUTS, udf_table
from dexorder_common.model.udf import TICKS, UdfCommand, UdfInput, UdfState
from dexorder_spark.records.relay_client import Stopped
from dexorder_spark.udf import programs
from tests.fakes.pages import TICKER, control, page
from tests.fakes.pipeline import wait_until
from tests.fakes.source_server import FakeSource, RunningSource
from tests.fakes.trades import MadeTrade, second, trade, trades_head, trades_record
from tests.paths import ROOT
from tests.unit.spark.udf.rig import definition, make, running, table_rows

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def source() -> Iterator[RunningSource]:
    server = RunningSource(FakeSource(partitions=1))
    yield server
    server.stop()


@pytest.fixture
def catalog(tmp_path: Path) -> CatalogSettings:
    return CatalogSettings.local(tmp_path)


def send(source: RunningSource, first: int, end: int, *late: MadeTrade, job: int = 1) -> None:
    """Send a record with the trades from ``first`` to ``end``, and late ones, of a realtime dispatch."""
    value, headers = trades_record(
        trades_head(first, end, job=job, page=first), [*late, *map(trade, range(first, end))]
    )
    source.fake.add(0, value, TICKER, headers)


def oracle(count: int) -> list[tuple[int, int, int, float]]:
    """Return sequence, time, count and sum of the rows that the agent ``sum`` makes of the first trades."""
    rows, total = [], 0.0
    for number in range(count):
        total += trade(number).price
        rows.append((number, trade(number).time_ns // 1_000, number + 1, total))
    return rows


def found(catalog: CatalogSettings) -> list[tuple[int, int, int, float]]:
    rows = table_rows(catalog)
    return [(row["sequence"], row["time"], row["fields"]["count"], row["fields"]["sum"]) for row in rows]


def test_rows_are_those_of_the_oracle_over_restarts(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    with running(catalog, source, definition()) as rig:
        rig.wait_for(5)
        send(source, 5, 9)
        rig.wait_for(9)
        assert "field is price" in rig.lines
    send(source, 9, 12)
    with running(catalog, source, definition()) as rig:
        rig.wait_for(12)
    assert found(catalog) == oracle(12)
    (row, *_) = table_rows(catalog)
    assert (row["name"], row["ticker"], row["group"]) == ("sum", TICKER, f"ticker={TICKER}")


def test_trades_that_come_twice_or_late_are_not_fed_again(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    send(source, 0, 5)
    send(source, 3, 8, job=2)  # another dispatch repeats two
    send(source, 8, 10, MadeTrade(77, second(2)))  # a trade that comes after later ones
    with running(catalog, source, definition()) as rig:
        rig.wait_for(10)
        assert rig.stage.status.late == 8
    assert found(catalog) == oracle(10)


def test_a_new_udf_begins_now_and_stays_there_over_a_restart(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    udf = definition(input=UdfInput(TICKS))
    with running(catalog, source, udf) as rig:
        rig.wait_for(0)
    send(source, 5, 8)  # while it does not run
    with running(catalog, source, udf) as rig:
        rig.wait_for(3)
    assert [row["fields"]["count"] for row in table_rows(catalog)] == [1, 2, 3]


def test_a_killed_udf_is_restored_and_its_output_is_complete(
    catalog: CatalogSettings, source: RunningSource, tmp_path: Path
) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()
    for first in range(0, 40, 4):
        send(source, first, first + 4)
    with running(catalog, source, definition("sum", "--die-at", "18", "--fuse", str(fuse)), max_records=3) as rig:
        rig.wait_for(40)
        assert rig.stage.status.restarts == 1
    assert not fuse.exists()
    assert found(catalog) == oracle(40)


def test_a_udf_that_refuses_a_point_fails_with_its_own_words(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    with running(catalog, source, definition("sum", "--refuse", "three is too many")) as rig:
        assert "three is too many" in rig.wait_state(UdfState.FAILED)
    assert found(catalog) == []
    with running(catalog, source, definition()) as rig:  # started again, it has lost nothing
        rig.wait_for(5)
    assert found(catalog) == oracle(5)


@pytest.mark.nightly  # it is restarted five times
def test_a_udf_that_never_answers_a_snapshot_request_fails(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    with running(catalog, source, definition("hang", answer_seconds=1.0)) as rig:
        message = rig.wait_state(UdfState.FAILED, 60.0)
    assert message == "it did not answer snapshot within 1 s (answer_seconds); given up after 5 restarts in a row"


def test_a_udf_that_is_away_is_waited_for_and_takes_up_where_it_was(
    catalog: CatalogSettings, source: RunningSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_CONNECT_SECONDS", 0.2)
    path = tmp_path / "udf.sock"
    command = (sys.executable, str(ROOT / "tests" / "peers" / "udf_agent.py"), "mirror", str(path))
    send(source, 0, 5)
    with running(catalog, source, definition(command=UdfCommand(socket=str(path)), options={})) as rig:
        assert "no server accepts connections" in rig.wait_state(UdfState.WAITING)
        for rows in (5, 8):
            with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
                rig.wait_for(rows)
                process.kill()
            path.unlink(missing_ok=True)
            send(source, rows, rows + 3)
            rig.wait_state(UdfState.WAITING)
    assert [row["sequence"] for row in table_rows(catalog)] == list(range(8))


def test_a_stop_does_not_wait_for_a_udf_that_hangs(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    udf = definition("hang", timeout_seconds=3_600.0, answer_seconds=3_600.0)
    with running(catalog, source, udf) as rig:
        rig.wait_state(UdfState.RUNNING)
    assert rig.stage.status.state is UdfState.STOPPED


def test_an_option_that_the_udf_does_not_have_is_named(catalog: CatalogSettings, source: RunningSource) -> None:
    with running(catalog, source, definition(options={"feld": ("price",)})) as rig:
        assert '"feld"' in rig.wait_state(UdfState.FAILED)


def test_a_udf_for_batches_gets_whole_windows(catalog: CatalogSettings, source: RunningSource) -> None:
    udf = definition("range", input=UdfInput(TICKS, since_ns=0, window_seconds=10))
    send(source, 0, 15)
    with running(catalog, source, udf) as rig:
        rig.wait_for(1)
    send(source, 15, 30)  # the open window is a part of the state; the last one closes as its time is settled
    with running(catalog, source, udf) as rig:
        rig.wait_for(3)
    rows = table_rows(catalog)
    assert [row["fields"]["count"] for row in rows] == [10, 10, 10]
    assert [row["fields"]["first"] for row in rows] == [trade(number).time_ns for number in (0, 10, 20)]
    assert [row["time"] * 1_000 for row in rows] == [second(10), second(20), second(30)]


def test_timers_close_candles_as_their_time_is_settled_and_over_a_restart(
    catalog: CatalogSettings, source: RunningSource
) -> None:
    command = UdfCommand(sys.executable, ("-m", "dexorder.udf.functions", "resample"))
    udf = definition(command=command, options={"every": ("10s",)})
    with running(catalog, source, udf) as rig:
        rig.wait_state(UdfState.RUNNING)
    table = udf_table("test").load(catalog.load())
    assert table is not None and json.loads(table.properties[UDF_OUTPUTS])["late"] == "ints"  # without any row
    send(source, 0, 15)
    with running(catalog, source, udf) as rig:
        rig.wait_for(1)
    send(source, 15, 20)  # no trade follows
    with running(catalog, source, udf) as rig:
        rig.wait_for(2)
        assert rig.stage.status.fed == 5  # marks do not count
    rows = [{"time": each.time_ns, "price": each.price, "amount": each.amount} for each in map(trade, range(20))]
    wanted = run_function(Resample, [*rows, rows[-1] | {"time": second(20)}], options={"every": "10s"})
    fields = [{key: row[key] for key in Resample.outputs} for row in wanted]
    assert [row["fields"] for row in table_rows(catalog)] == fields


def test_a_udf_for_batches_needs_a_window(catalog: CatalogSettings, source: RunningSource) -> None:
    with running(catalog, source, definition("range")) as rig:
        assert "input.window is not set" in rig.wait_state(UdfState.FAILED)


def test_history_is_fed_only_if_it_is_asked_for(catalog: CatalogSettings, source: RunningSource) -> None:
    for first in (0, 10):
        value, headers = page(control(first, 10))
        source.fake.add(0, value, TICKER, headers)
    options = {"field": ("close",)}
    with running(catalog, source, definition(options=options, input=UdfInput(since_ns=0))) as rig:
        rig.wait_for(0)
        assert rig.stage.status.fed == 0
    udf = definition(options=options, input=UdfInput(since_ns=0, history=True), name="other")
    with running(catalog, source, udf) as rig:
        rig.wait_for(20)
    rows = table_rows(catalog, "other")
    assert rows[-1]["fields"] == {"count": 20, "sum": 20 * 101.0}
    assert (rows[0]["ticker"], rows[0]["period"]) == (TICKER, "1m")


def test_it_waits_for_a_source_that_is_away(catalog: CatalogSettings, source: RunningSource) -> None:
    source.stop()
    with running(catalog, source, definition()) as rig:
        assert source.address in rig.wait_state(UdfState.WAITING)
        source.start()
        send(source, 0, 5)
        rig.wait_for(5)
    assert found(catalog) == oracle(5)


def test_a_foreign_commit_makes_it_look_again(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    with running(catalog, source, definition()) as rig:
        rig.wait_for(5)
        table = catalog.load().load_table("trading.udf_test")
        commit_files(table, properties=state_of(table.metadata).encode())
        send(source, 5, 9)
        rig.wait_for(9)
    assert found(catalog) == oracle(9)


def test_two_drivers_leave_each_row_once(catalog: CatalogSettings, source: RunningSource) -> None:
    """Both feed every trade; the commit of one lets the other begin again at its state."""
    with running(catalog, source, definition()), running(catalog, source, definition()):
        for first in range(0, 24, 3):
            send(source, first, first + 3)
            wait_until(lambda count=first + 3: len(table_rows(catalog)) >= count, 60)  # type: ignore[misc]
    assert found(catalog) == oracle(24)


def test_rows_that_were_not_sent_on_are_sent_at_the_next_start(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    with running(catalog, source, definition()) as rig:
        rig.sinks.failures = [OSError("the gateway is away")] * 1_000
        rig.wait_for(5)  # the table does not wait for the gateway
        send(source, 5, 8)
        rig.wait_for(8)
        wait_until(lambda: "the gateway is away" in rig.stage.status.message)
        assert rig.sinks.rows == []
    with running(catalog, source, definition()) as rig:
        wait_until(lambda: len(rig.sinks.rows) == 8, 30)
    with running(catalog, source, definition()) as rig:
        send(source, 8, 9)
        wait_until(lambda: len(rig.sinks.rows) == 1, 30)
    assert [row["sequence"] for row in rig.sinks.rows] == [8], "what was sent before is known by the next start"
    assert found(catalog) == oracle(9)


def test_a_refused_row_is_a_dead_letter_and_nothing_stops(catalog: CatalogSettings, source: RunningSource) -> None:
    with running(catalog, source, definition()) as rig:
        rig.sinks.refuses = {1}
        send(source, 0, 3)
        wait_until(lambda: len(rig.sinks.rows) == 2, 30)
    letters = DEAD_LETTERS.rows(catalog.load().load_table(DEAD_LETTERS.name).scan().to_arrow())
    (letter,) = letters
    assert (letter["source"], letter["offset"], letter["reason"]) == ("trading.udf_test>topic t", 1, "too large")
    assert json.loads(letter["payload"])["sequence"] == 1
    assert found(catalog) == oracle(3)


def test_stop_is_looked_at_within_the_batches_of_a_large_backlog(
    catalog: CatalogSettings, source: RunningSource
) -> None:
    for number in range(160):
        send(source, number, number + 1)
    stop = threading.Event()
    reader = make(catalog, source, definition(), stop, max_records=1_000).stage._reader
    reader.resume(CommitState())
    looks = 0

    def pulse() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise Stopped("stopping")

    before = dict(reader.position)
    with pytest.raises(Stopped):
        reader.next(lambda series: True, pulse)
    assert reader.position == before and looks == 2


def test_a_start_anew_forgets_state_and_position_but_no_row(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 3)
    with running(catalog, source, definition()) as rig:
        rig.wait_for(3)
    with running(catalog, source, definition(), since_generation=7) as rig:
        rig.wait_for(6)
    with running(catalog, source, definition(), since_generation=7) as rig:  # the same start again is not anew
        send(source, 3, 4)
        rig.wait_for(7)
    counts = [(row["sequence"], row["fields"]["count"]) for row in table_rows(catalog)]
    assert counts == [(0, 1), (1, 2), (2, 3), (3, 1), (4, 2), (5, 3), (6, 4)]


def test_a_lost_state_is_an_error_that_names_the_way_out(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 3)
    with running(catalog, source, definition()) as rig:
        rig.wait_for(3)
    table = catalog.load().load_table("trading.udf_test")
    table.io.delete(state_of(table.metadata).udf_state)
    with running(catalog, source, definition()) as rig:
        assert "--anew" in rig.wait_state(UdfState.FAILED)
    with running(catalog, source, definition(), since_generation=1) as rig:
        rig.wait_for(6)
    assert [row["sequence"] for row in table_rows(catalog)] == [0, 1, 2, 3, 4, 5]


def test_a_state_that_is_too_large_is_an_error(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 5)
    with running(catalog, source, definition(), max_state_bytes=150) as rig:
        assert "at most 150 are allowed" in rig.wait_state(UdfState.FAILED)


def test_a_topic_that_was_made_anew_is_read_from_its_start(catalog: CatalogSettings, source: RunningSource) -> None:
    send(source, 0, 2)
    send(source, 2, 5)
    with running(catalog, source, definition()) as rig:
        rig.wait_for(5)
    source.fake.create_again()
    send(source, 3, 8)
    with running(catalog, source, definition()) as rig:
        rig.wait_for(8)
    assert found(catalog) == oracle(8)


def test_files_of_states_do_not_pile_up(catalog: CatalogSettings, source: RunningSource, tmp_path: Path) -> None:
    with running(catalog, source, definition()) as rig:
        for first in range(0, 12, 3):
            send(source, first, first + 3)
            rig.wait_for(first + 3)
    table = catalog.load().load_table(udf_table("test").name)
    states = list(tmp_path.rglob("*.state"))
    assert [str(path) for path in states] == [state_of(table.metadata).udf_state.removeprefix("file://")]
    assert not any(path.is_relative_to(table.location().removeprefix("file://")) for path in states)


DRIVER = """
import json, sys, threading
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.udf import TICKS, UdfInput
from tests.unit.spark.udf.rig import definition, make
from pathlib import Path
given = json.loads(sys.argv[1])
class Source: address = given["address"]
rig = make(CatalogSettings.local(Path(given["folder"])), Source(), definition(), threading.Event(), max_records=2)
rig.stage.run()
"""


def test_kill_9_of_the_process_neither_loses_nor_doubles_a_row(
    catalog: CatalogSettings, source: RunningSource, tmp_path: Path
) -> None:
    """The process that runs the stage is killed twice while it works; the agents end with it."""
    given: dict[str, Any] = {"address": source.address, "folder": str(tmp_path)}
    for first in range(0, 60, 2):
        send(source, first, first + 2)
    tables = catalog.load()
    for rows in (4, 24):
        process = subprocess.Popen([sys.executable, "-c", DRIVER, json.dumps(given)], cwd=ROOT)
        try:
            wait_until(lambda rows=rows: count_rows(tables) >= rows, 60)  # type: ignore[misc]
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    with running(catalog, source, definition()) as rig:
        rig.wait_for(60)
    assert found(catalog) == oracle(60)


def count_rows(tables: Catalog) -> int:
    table = udf_table("test").load(tables)
    snapshot = table.current_snapshot() if table else None
    return int(snapshot.summary["total-records"] or 0) if snapshot and snapshot.summary else 0
