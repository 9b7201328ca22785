"""All UDFs of a driver against a relay: started, stopped, reported; one's failure is its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.errors import SuiteError, Unavailable
from dexorder_common.model.udf import TICKS, UdfCommand, UdfDefinition, UdfInput, UdfRegistration, UdfState
from dexorder_common.rpc.udf_messages import decode_status
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.source.offsets import SourceState
from dexorder_spark.udf import programs
from dexorder_spark.udf.lags import TopicEnds
from dexorder_spark.udf.programs import Declared
from dexorder_spark.udf.stages import UdfStages
from tests.fakes.pages import TICKER
from tests.fakes.pipeline import wait_until
from tests.fakes.pipeline_relay import PipelineRelay, served
from tests.fakes.source_server import FakeSource, RunningSource
from tests.fakes.trades import trade, trades_head, trades_record
from tests.unit.spark.udf.rig import definition, table_rows

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def topic() -> FakeSource:
    topic = FakeSource(partitions=1)
    for first in range(0, 20, 5):
        send(topic, first)
    return topic


def send(topic: FakeSource, first: int) -> None:
    """Send a record with five trades."""
    value, headers = trades_record(trades_head(first, first + 5, page=first), map(trade, range(first, first + 5)))
    topic.add(0, value, TICKER, headers)


@pytest.fixture
def source(topic: FakeSource) -> Iterator[RunningSource]:
    server = RunningSource(FakeSource(partitions=1), topics={"dexorder.ticks": topic})
    yield server
    server.stop()


@contextmanager
def stages(
    relay: PipelineRelay, source: RunningSource, catalog: CatalogSettings, declared: dict[str, Declared]
) -> Iterator[UdfStages]:
    stop = threading.Event()
    with served(relay) as address:
        settings = SparkSettings(source=source.address, relay=address, batch_seconds=0, listen="127.0.0.1:0")
        found = UdfStages(settings, catalog, declared, WriterLocks(), stop)
        thread = threading.Thread(target=found.run)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join(30)


def reported(relay: PipelineRelay, name: str, state: UdfState, rows: int = 0) -> str:
    """Wait until the driver has reported a state and a number of rows; return the message."""

    def has() -> bool:
        found = [decode_status(each) for each in relay.synced.statuses if each.name == name]
        return any(each.state is state and each.rows >= rows for each in found)

    wait_until(has, 60)
    return next(each.message for each in relay.synced.statuses if each.name == name)


def test_udfs_are_started_and_stopped_and_fail_alone(tmp_path: Path, source: RunningSource) -> None:
    catalog, relay = CatalogSettings.local(tmp_path), PipelineRelay()
    good = definition(name="good")
    bad = definition("sum", "--refuse", "not this one", name="bad")
    idle = Declared(definition(name="idle"), starts=False)
    with stages(relay, source, catalog, {"good": Declared(good, True), "bad": Declared(bad, True), "idle": idle}):
        reported(relay, "good", UdfState.RUNNING, rows=20)
        assert "not this one" in reported(relay, "bad", UdfState.FAILED)
        assert {each.name for each in relay.synced.declared} == {"good", "bad", "idle"}
        own = UdfDefinition("own", "idle", input=UdfInput(TICKS, since_ns=0))
        shell = definition(name="shell")
        relay.udfs = [
            UdfRegistration("good", 1, stopped=True),
            UdfRegistration("own", 2, stopped=False, definition=own),
            UdfRegistration("shell", 3, stopped=False, definition=shell),
        ]
        reported(relay, "own", UdfState.RUNNING, rows=20)
        reported(relay, "good", UdfState.STOPPED)
        assert "refused on this Spark host" in reported(relay, "shell", UdfState.FAILED)
        relay.udfs[0] = UdfRegistration("good", 4, stopped=False)
        reported(relay, "good", UdfState.RUNNING, rows=20)
        wait_until(lambda: any("not this one" in line for line in relay.udf_lines["bad"]), 30)
    for name in ("good", "own"):
        assert [row["fields"]["count"] for row in table_rows(catalog, name)] == [*range(1, 21)]


def test_while_the_relay_is_away_they_go_on(tmp_path: Path, source: RunningSource) -> None:
    catalog, relay = CatalogSettings.local(tmp_path), PipelineRelay()
    stop = threading.Event()
    with served(relay) as address:
        settings = SparkSettings(source=source.address, relay=address, batch_seconds=0, listen="127.0.0.1:0")
        found = UdfStages(settings, catalog, {"good": Declared(definition(name="good"), True)}, WriterLocks(), stop)
        thread = threading.Thread(target=found.run)
        thread.start()
        reported(relay, "good", UdfState.RUNNING, rows=20)
    try:
        assert [each.state for each in found.statuses()] == [UdfState.RUNNING]
    finally:
        stop.set()
        thread.join(30)


def test_how_far_a_udf_is_behind_is_known_while_it_hangs_or_is_away(
    tmp_path: Path, source: RunningSource, topic: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage looks at no topic then. A batch that is under way counts until its output is complete."""
    monkeypatch.setattr(programs, "_CONNECT_SECONDS", 0.2)
    hangs = definition("hang", name="hangs", timeout_seconds=3_600.0, answer_seconds=3_600.0)
    away = definition(name="away", command=UdfCommand(socket=str(tmp_path / "nobody")))
    relay = PipelineRelay()

    def lags() -> dict[str, tuple[UdfState, int]]:
        found = [decode_status(each) for each in relay.synced.statuses]
        return {each.name: (each.state, each.lag) for each in found}

    declared = {each.name: Declared(each, True) for each in (hangs, away)}
    with stages(relay, source, CatalogSettings.local(tmp_path), declared):
        wait_until(lambda: lags().get("hangs") == (UdfState.RUNNING, 4) and lags()["away"][1] == 4, 60)
        send(topic, 20)
        wait_until(lambda: {lag for _, lag in lags().values()} == {5}, 60)


def test_a_source_that_does_not_answer_keeps_the_ends_that_are_known() -> None:
    answers: list[SourceState | SuiteError] = [
        Unavailable("away"),
        SourceState({0: 0, 1: 0}, {0: 7, 1: 2}, {}),
        Unavailable("away"),
        SourceState({0: 0, 1: 0}, {0: 9, 1: 2}, {}),
    ]

    class Source:
        def state(self) -> SourceState:
            answer = answers.pop(0)
            if isinstance(answer, SuiteError):
                raise answer
            return answer

    ends, found = TopicEnds(lambda address: Source()), list[int | None]()
    while answers:
        found.append(ends.lag("a", {0: 4}))
        ends.look()
    assert [*found, ends.lag("a", {0: 4}), ends.lag("a", {0: 10, 1: 2})] == [None, None, 5, 5, 7, 0]


def test_the_topic_of_a_udf_that_was_removed_is_not_looked_at_for_long() -> None:
    looks: list[str] = []

    class Source:
        def __init__(self, address: str) -> None:
            self._address = address

        def state(self) -> SourceState:
            looks.append(self._address)
            return SourceState({0: 0}, {0: 7}, {})

    ends = TopicEnds(Source)
    ends.lag("removed", {})
    for _ in range(500):
        ends.lag("kept", {})
        ends.look()
    assert looks.count("kept") == 500 and 0 < looks.count("removed") < 100
    assert ends.lag("kept", {}) == 7 and ends.lag("removed", {}) is None
    ends.look()
    assert ends.lag("removed", {}) == 7, "it is back"
