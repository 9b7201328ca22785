"""Breaks of triggers that some of the fixed seeds must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest

from dexorder_cep.run import engine
from dexorder_cep.run.delivery import Registration
from dexorder_cep.run.stream_runs import TickerSeries
from dexorder_spark.cep import catch_up
from dexorder_spark.cep.evaluator import Evaluator
from dexorder_spark.cep.journal import Journal
from dexorder_spark.cep.relay import TriggerRelay
from tests.simulation import memory_files, triggers
from tests.simulation.run import Broken
from tests.unit.simulation.test_triggers import CHANGED_SEEDS, SEEDS

pytestmark = pytest.mark.nightly  # they show that the gate's seeds notice, and a changed seed moves them

Patch = Callable[[pytest.MonkeyPatch], None]


def batch_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is published before it is on disk."""
    sync = memory_files.MemoryFiles.sync

    def only_snapshots(self: memory_files.MemoryFiles, name: str) -> None:
        if not name.endswith(".log"):
            sync(self, name)

    monkeypatch.setattr(memory_files.MemoryFiles, "sync", only_snapshots)


def report_is_not_repeated_after_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart does not report the events of the last batch again."""
    read = Journal.read

    def without_events(self: Journal) -> Any:
        found = read(self)
        return found and (found[0], [replace(batch, events=()) for batch in found[1]])

    monkeypatch.setattr(Journal, "read", without_events)


def report_is_not_repeated_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that the relay has not answered is given up."""
    report = TriggerRelay.report

    def once(self: TriggerRelay, *given: Any, **named: Any) -> None:
        def call(method: Any, request: Any, again: Any = None) -> Any:
            try:
                return method(request, timeout=5.0)
            except grpc.RpcError:
                return None

        monkeypatch.setattr(self, "call", call, raising=False)
        report(self, *given, **named)

    monkeypatch.setattr(TriggerRelay, "report", once)


def torn_record_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows the last whole record is not cut off."""

    def open_log(self: Journal, name: str, size: int) -> None:
        self._files.append(name, b"")
        self._log = name

    monkeypatch.setattr(Journal, "_open", open_log)


def deletion_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process does not remove a trigger."""
    monkeypatch.setattr(Evaluator, "_remove", lambda self, registration: None)


def a_topic_starts_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that becomes watched is read from where it ends when the process gets there."""
    monkeypatch.setattr(catch_up, "since", lambda state, at_ns, read: dict(state.ends))


def a_late_registration_is_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were evaluated before a registration arrived do not fire it."""
    monkeypatch.setattr(TickerSeries, "mark_after", lambda self, at_ns: None)


def time_of_trades_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trade that was made before the registration is silent, though it was settled later."""
    monkeypatch.setattr(TickerSeries, "hear", lambda self, registration, mark: None)


def a_pause_ends_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a pause that are evaluated after its end fire."""
    monkeypatch.setattr(Registration, "is_silenced", lambda self, ticker, stamp_ns: ticker in self.withheld)


def a_pause_before_the_registration_arrived_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a pause that ended before the process heard of the trigger fire."""
    monkeypatch.setattr(engine, "skip", lambda registration, ticker, pauses: None)


MUTANTS: Sequence[Patch] = (
    batch_is_not_synced,
    report_is_not_repeated_after_a_kill,
    report_is_not_repeated_after_a_failure,
    torn_record_stays,
    deletion_is_lost,
    a_topic_starts_at_its_end,
    a_late_registration_is_deaf,
    time_of_trades_counts,
    a_pause_ends_with_the_batch,
    a_pause_before_the_registration_arrived_is_unknown,
)
RUNS: Sequence[tuple[Callable[[int], object], int]] = [
    *((triggers.simulate, seed) for seed in SEEDS),
    *((triggers.simulate_changes, seed) for seed in CHANGED_SEEDS),
]


@pytest.mark.parametrize("break_it", MUTANTS, ids=lambda patch: patch.__name__)
def test_a_break_is_noticed(break_it: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    for simulate, seed in RUNS:
        try:
            simulate(seed)
        except Broken:
            return
        except Exception:  # a journal that cannot be read ends the process, which is noticed too
            return
    pytest.fail(f"no seed notices: {break_it.__doc__}")
