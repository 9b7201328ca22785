"""The host against agents that were written from the protocol, in processes of their own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dexorder_udf import host as host_module
from dexorder_udf import link
from dexorder_udf.errors import UdfError, UdfOptionError, UdfStopped, UdfUnreachable
from dexorder_udf.host import UdfHost
from dexorder_udf.options import ValueType
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge
from dexorder_udf.spec import UdfSpec
from tests.paths import ROOT

AGENT = str(ROOT / "tests" / "peers" / "udf_agent.py")
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def spec(name: str, **settings: Any) -> UdfSpec:
    return UdfSpec(name, prog=sys.executable, args=(AGENT, name), env=ENVIRONMENT, **settings)


@contextmanager
def started(udf: UdfSpec, snapshot: bytes | None = None) -> Iterator[UdfHost]:
    host = UdfHost(udf, on_log=lambda line: None)
    host.start(snapshot)
    try:
        yield host
    finally:
        host.close(5)


def numbered(first: int, last: int, group: str = "a") -> list[Point]:
    return [Point(n, {"ticker": group}, {"value": float(n)}, "ohlc", ("ticker",)) for n in range(first, last)]


def send(host: UdfHost, number: int) -> None:
    assert host._link is not None and host._link._connection.pid
    os.kill(host._link._connection.pid, number)


def kill(host: UdfHost) -> None:
    send(host, signal.SIGKILL)


def test_a_process_that_is_killed_before_it_is_ready_is_started_again(tmp_path: Path) -> None:
    once = tmp_path / "killed"
    program = f"if [ -e {once} ]; then exec {shlex.join((sys.executable, AGENT))} mirror; fi; touch {once}; kill -9 $$"
    with started(replace(spec("mirror"), prog="sh", args=("-c", program), backoff_seconds=0.01)) as host:
        assert host.restarts == 1
        assert len(host.process(numbered(0, 3)) + host.checkpoint()[0]) == 3


def test_a_mirror_returns_everything_in_order_and_whole() -> None:
    points = [
        Point(-(2**63), {"t": "ü"}, {"d": 0.1, "i": -5, "s": "x\n", "b": True}, "n", ("t",), True, "db", "rp"),
        *numbered(0, 5000),
    ]
    with started(spec("mirror")) as host:
        assert host.info.wants is host.info.provides is Edge.STREAM
        outputs = host.process(points[:100])
        outputs += host.process(points[100:])
        rest, snapshot = host.checkpoint()
        assert (outputs + rest, snapshot) == (points, b"")
        assert host.checkpoint() == ([], b"")


def test_batches_come_back_as_batches() -> None:
    batches = [
        Batch([Point(n, {"t": "a"}, {"value": float(n)}) for n in range(size)], "w", {"t": "a"}, size)
        for size in (0, 1, 900)
    ]
    with started(spec("batch_mirror")) as host:
        host.process(batches)
        assert host.checkpoint()[0] == batches


def test_outliers_of_batches() -> None:
    batch = Batch([Point(n, {}, {"value": 100.0 if n == 7 else 1.0}) for n in range(20)], "w", {"t": "a"}, 5)
    with started(spec("outliers", options={"scale": 50.0})) as host:
        host.process([batch, batch])
        expected = Batch([Point(7, {}, {"value": 100.0})], "w", {"t": "a"}, 5)
        assert host.checkpoint()[0] == [expected, expected]


def test_the_average_of_groups_continues_from_a_snapshot_in_another_process() -> None:
    points = [each for pair in zip(numbered(0, 20), numbered(0, 20, "b"), strict=True) for each in pair]
    with started(spec("average", options={"size": "4"})) as host:
        host.process(points)
        expected = host.checkpoint()[0]
    with started(spec("average", options={"size": 4})) as host:
        assert host.info.options == {"size": (ValueType.INT,)}
        host.process(points[:13])
        first, snapshot = host.checkpoint()
    with started(spec("average", options={"size": 4}), snapshot) as host:
        host.process(points[13:])
        assert first + host.checkpoint()[0] == expected
    assert expected[-1].fields == {"mean": 17.5}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sise": 1}, 'UDF "average": has no option "sise"; its options: size'),
        ({"size": "many"}, 'UDF "average": option "size": \'many\' is not a whole number'),
    ],
)
def test_options_are_checked_before_init(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UdfOptionError, match=words), started(spec("average", options=options)):
        pass


def test_a_udf_refuses_options_in_its_own_words() -> None:
    with pytest.raises(UdfError, match=r"^UDF \"average\": init failed: size must be above 0, not 0$"):
        started(spec("average", options={"size": 0})).__enter__()


def test_a_killed_udf_continues_from_the_snapshot_with_the_input_since() -> None:
    lines: list[str] = []
    host = UdfHost(spec("average", backoff_seconds=0.01), on_log=lines.append)
    host.start()
    try:
        outputs = host.process(numbered(0, 50))
        outputs += host.checkpoint()[0]
        outputs += host.process(numbered(50, 80))
        kill(host)
        outputs += host.checkpoint()[0]
        outputs += host.process(numbered(80, 100))
        kill(host)
        outputs += host.checkpoint()[0]
    finally:
        host.close(5)
    assert host.restarts == 2 and sum("SIGKILL" in each for each in lines) == 2
    assert [each.time_ns for each in outputs] == list(range(100))  # type: ignore[union-attr]
    assert [each.fields["mean"] for each in outputs[2:]] == [float(n - 1) for n in range(2, 100)]  # type: ignore[union-attr]


def test_an_end_between_two_calls_is_noticed_without_data_and_costs_no_output() -> None:
    with started(spec("average", backoff_seconds=0.01)) as host:
        outputs = host.process(numbered(0, 50))
        host.look()
        assert host.restarts == 0
        kill(host)
        while not host.restarts:
            host.look()
        outputs += host.checkpoint()[0]
        kill(host)
        while host.restarts < 2:
            host.look()
        outputs += host.process(numbered(50, 60)) + host.checkpoint()[0]
    assert [each.time_ns for each in outputs] == list(range(60))  # type: ignore[union-attr]


def test_outputs_are_handed_over_before_the_checkpoint_once_a_snapshot_covers_them() -> None:
    with started(spec("average", replay_limit_bytes=1000)) as host:
        outputs = host.process(numbered(0, 3000))
        assert len(outputs) > 2000
        assert len(outputs + host.checkpoint()[0]) == 3000
        assert host._kept_bytes == 0


def test_at_the_end_the_rest_of_the_output_is_drained() -> None:
    host = UdfHost(spec("mirror"), on_log=lambda line: None)
    host.start()
    host.process(numbered(0, 2000))
    assert host.close() == numbered(0, 2000)
    assert host.close() == []
    with pytest.raises(UdfError, match="has not been started"):
        host.process(numbered(0, 1))


@contextmanager
def listening(name: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, AGENT, name, str(path)], env={**os.environ, **ENVIRONMENT})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)


def test_a_socket_is_waited_for_and_connected_again_after_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "udf.sock"
    host = UdfHost(
        UdfSpec("average", socket=str(path), backoff_seconds=0.01, timeout_seconds=60), on_log=lambda _: None
    )
    with listening("average", path):  # slower than our first attempt
        host.start()
        host.process(numbered(0, 50))
        outputs = host.checkpoint()[0]
        host.process(numbered(50, 60))
    with listening("average", path):
        outputs += host.process(numbered(60, 100))
        outputs += host.checkpoint()[0]
        host.close(5)
    assert host.restarts == 1
    assert [each.fields["mean"] for each in outputs[2:]] == [float(n - 1) for n in range(2, 100)]  # type: ignore[union-attr]


FUNCTIONS, PEERS = ROOT / "tests" / "peers" / "udf_functions.py", ROOT / "tests" / "peers" / "udf_misbehaving.py"


@pytest.mark.parametrize(("program", "options", "count"), [(FUNCTIONS, {"ms": 40}, 240), (PEERS, {}, 240)])
def test_a_slow_function_with_a_backlog_is_not_taken_for_dead(
    program: Path, options: dict[str, int], count: int
) -> None:
    """Its backlog takes longer than each of the times that it has, and a pause of a busy machine does not."""
    short: dict[str, Any] = {"timeout_seconds": 4.0, "answer_seconds": 4.0, "max_restarts": 0}
    udf = replace(spec("slow"), args=(str(program), "slow"), options=options, **short)
    with started(udf) as host:
        outputs = host.process(numbered(0, count)) + host.checkpoint()[0]
        assert len(outputs) == (count if program is PEERS else 0)


def test_whoever_waits_is_called_while_it_waits_and_in_the_pause_before_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(host_module, "_PAUSE_SECONDS", 0.02)
    calls: list[str] = []
    udf = replace(
        spec("mute"), args=(str(PEERS), "no_snapshot"), answer_seconds=0.15, backoff_seconds=0.15, max_restarts=1
    )
    host = UdfHost(
        udf,
        on_log=lambda line: None,
        on_start=lambda pid: calls.append("start"),
        on_restart=lambda reason: calls.append("restart"),
        on_wait=lambda: calls.append("wait"),
    )
    host.start()
    del calls[: calls.index("start") + 1]
    with pytest.raises(UdfError, match="did not answer snapshot"):
        host.checkpoint()
    first = calls.index("restart")
    assert calls[:first].count("wait") >= 1 and calls[first + 1] == "wait"


def test_who_is_away_can_be_waited_for_and_who_breaks_can_not() -> None:
    away = UdfSpec("f", socket="/nowhere", connect_seconds=0.05)
    with pytest.raises(UdfUnreachable):
        UdfHost(away).start()
    with pytest.raises(UdfError) as error:
        UdfHost(replace(spec("mirror"), prog="/no/such/program")).start()
    assert not isinstance(error.value, UdfUnreachable)


def test_a_stop_ends_the_wait_for_a_connection() -> None:
    stop = threading.Event()
    stop.set()
    ways: tuple[dict[str, Any], ...] = ({"socket": "/nowhere"}, {"grpc_target": "127.0.0.1:1"})
    for way in ways:
        with pytest.raises(UdfStopped):
            UdfHost(UdfSpec("f", connect_seconds=3_600, **way), stop=stop).start()


def test_nothing_listens() -> None:
    with pytest.raises(UdfError, match="no server accepts connections at /nowhere within"):
        UdfHost(UdfSpec("f", socket="/nowhere", connect_seconds=0.1)).start()
    with pytest.raises(UdfError, match=r"no gRPC server at .* answers within"):
        UdfHost(UdfSpec("f", grpc_target="127.0.0.1:1", connect_seconds=0.2)).start()


def test_programs_that_do_not_start() -> None:
    with pytest.raises(UdfError, match="/no/such/program can't be started"):
        UdfHost(UdfSpec("f", prog="/no/such/program")).start()


def test_wrong_input_is_refused_and_the_udf_goes_on() -> None:
    with started(spec("mirror")) as host:
        with pytest.raises(UdfError, match="it wants points, not Batch"):
            host.process([Batch([])])
        with pytest.raises(UdfError, match="time_ns: 9223372036854775808 does not fit in 64 bits"):
            host.process([Point(2**63)])
        host.process(numbered(0, 3))
        assert host.checkpoint()[0] == numbered(0, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"socket": "/x"}, "given: prog and socket"),
        ({"prog": None}, "given: none"),
        ({"prog": None, "socket": "/x"}, "args and env need prog"),
        ({"timeout_seconds": 0}, "timeout_seconds: 0 is not above 0"),
        ({"max_restarts": -1}, "max_restarts: -1 is below 0"),
    ],
)
def test_wrong_declarations(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UdfError, match=words):
        replace(spec("mirror"), **changes)


def test_time_in_which_the_caller_does_not_read_is_not_the_udfs_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def after(hours: int) -> None:
        later_s = hours * 3_600
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s, time_ns=time.time_ns)
        monkeypatch.setattr(link, "time", clock)

    with started(spec("mirror", timeout_seconds=60, max_restarts=0)) as host:
        host.process(numbered(0, 20_000))  # more than the pipes hold, so the agent is blocked by us
        after(hours=1)
        assert len(host.checkpoint()[0]) == 20_000
        send(host, signal.SIGSTOP)  # so that it says nothing before it is asked
        host.look()
        after(hours=2)
        threading.Timer(0.2, send, (host, signal.SIGCONT)).start()
        assert host.checkpoint()[0] == []
        assert host.restarts == 0


def test_no_process_is_left() -> None:
    pids: list[int | None] = []
    host = UdfHost(spec("mirror"), on_log=lambda line: None, on_start=pids.append)
    host.start()
    host.close()
    (pid,) = pids
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    with suppress(ChildProcessError):
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
