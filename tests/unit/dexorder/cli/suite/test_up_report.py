"""What ``dexorder up`` prints while parts are starting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dexorder.cli.suite.up_report import ConsoleReporter, newest_event
from dexorder.supervisor.plan import SuiteOptions
from dexorder.supervisor.state import PartState


def test_the_newest_event_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert newest_event(log) == "starting"
    log.write_text("WARNING: Using incubator modules\n")
    assert newest_event(log) == "starting"
    log.write_text(
        "2026-11-25T23:13:11.560471Z [info     ] listening                      address=127.0.0.1:23716\n"
        "2026-11-25T23:13:12.560471Z [info     ] opening the tables\nsome Java text\n"
    )
    assert newest_event(log) == "opening the tables"


def test_a_part_is_not_described_by_the_log_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("dexorder.cli.suite.up_report.time.monotonic", lambda: seconds[0])
    log = tmp_path / "logs" / "relay.log"
    log.parent.mkdir()
    log.write_text("2026-11-25T23:13:12.560471Z [info     ] drained\n")
    reporter = ConsoleReporter(SuiteOptions(tmp_path))
    seconds[0] = 3.0
    reporter.waiting({"relay": log})
    with log.open("a") as file:
        file.write("2026-11-25T23:14:12.560471Z [info     ] listening\n")
    seconds[0] = 6.0
    reporter.waiting({"relay": log})
    printed = [line for line in capsys.readouterr().out.splitlines() if "waiting" in line]
    assert printed == ["[  3.0 s] waiting for relay (starting)", "[  6.0 s] waiting for relay (listening)"]


def test_a_part_that_starts_again_is_not_described_by_the_log_of_its_last_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("dexorder.cli.suite.up_report.time.monotonic", lambda: seconds[0])
    reporter = ConsoleReporter(SuiteOptions(tmp_path))
    (log := tmp_path / "logs" / "spark.log").parent.mkdir()
    log.write_text("2026-11-25T23:13:12.560471Z [info     ] batch\n")
    ready = PartState("127.0.0.1:1", "grpc://127.0.0.1:1", 7, "ready")
    seconds[0] = 50.0
    dead = replace(ready, pid=None, state="restarting", detail="killed by SIGKILL")
    reporter.part_changed("spark", ready, dead)
    reporter.part_changed("spark", dead, replace(ready, pid=8, state="starting"))
    for second in (51.0, 52.0, 54.0):
        seconds[0] = second
        reporter.waiting({"spark": log})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "[ 50.0 s] spark: killed by SIGKILL; restarting",
        "[ 50.0 s] spark: starting",
        "[ 51.0 s] waiting for spark (starting)",
        "[ 54.0 s] waiting for spark (starting)",
    ]


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({"only": ("gateway",)}, True),
        ({"only": ("gateway",), "kafka": "a:1"}, False),
        ({}, False),
        ({"only": ("sim",)}, False),
    ],
)
def test_a_gateway_that_is_ready_without_kafka_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], is_said: bool
) -> None:
    ConsoleReporter(SuiteOptions(tmp_path, **options)).all_ready()
    printed = capsys.readouterr().out
    assert ("KafkaPixy answers UNAVAILABLE until a Kafka runs at 127.0.0.1:9092" in printed) is is_said


def test_a_part_that_starts_is_named_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("dexorder.cli.suite.up_report.time.monotonic", lambda: seconds[0])
    reporter = ConsoleReporter(SuiteOptions(tmp_path))
    for second in range(6):
        seconds[0] = float(second)
        reporter.waiting({"spark": tmp_path / "spark.log"})
    printed = [line for line in capsys.readouterr().out.splitlines() if "waiting" in line]
    assert printed == ["[  2.0 s] waiting for spark (starting)", "[  4.0 s] waiting for spark (starting)"]
