"""UDFs that break the protocol, die, hang or flood: each gives its own clear error, and another UDF is not affected."""

from __future__ import annotations

import resource
import sys
import threading
from typing import Any

import pytest

from dexorder_udf.errors import UdfError, UdfStopped
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point
from dexorder_udf.spec import MIB, UdfSpec
from tests.paths import ROOT
from tests.peers.udf_misbehaving import BATCHES

AGENT = str(ROOT / "tests" / "peers" / "udf_misbehaving.py")
QUICK = {"timeout_seconds": 0.5}
"""For UDFs that are expected to be silent; whoever is slower than this gets the same error."""


def spec(name: str, *args: str, **settings: Any) -> UdfSpec:
    settings = {"backoff_seconds": 0.01, "max_restarts": 1, "grace_seconds": 0.1, "timeout_seconds": 30.0} | settings
    return UdfSpec(name, prog=sys.executable, args=(AGENT, name, *args), env={"PYTHONPATH": str(ROOT)}, **settings)


def error_of(udf: UdfSpec, snapshot: bytes | None = None) -> str:
    """Start, feed and checkpoint a UDF; return the error that this gives."""
    host = UdfHost(udf, on_log=lambda line: None)
    point = Point(1, {}, {"value": 1.0})
    try:
        with pytest.raises(UdfError) as error:
            host.start(snapshot)
            host.process([Batch([point]) if udf.name in BATCHES else point])
            host.checkpoint()
        with pytest.raises(UdfError):  # and it stays failed
            host.checkpoint()
    finally:
        host.close()
    assert error.value.udf == udf.name
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("end_without_begin", "it sent the end of a batch that it had not begun"),
        ("empty_response", "a message is empty"),
        ("response_without_content", "a message has no content (48 00)"),
        ("negative_size", "it began a batch with the negative size -1"),
        ("begin_twice", "it began a batch before the end of the last one"),
        ("point_outside_batch", "it sent a point outside a batch on a batch edge"),
        ("batch_on_stream", "it sent begin of a batch on a stream edge"),
        ("length_bomb", f"a frame has {2**40:,} bytes, more than the limit of 67,108,864 (80 80"),
        ("long_varint", "a frame length has more than 64 bits (80 80"),
        ("text", 'bytes are not a message ("rocessing point 1 of many'),
        ("garbage", "bytes are not a message (ff ff ff ff ff)"),
        ("error_response", "it reports: no field 'close' in point"),
        (
            "unrequested_snapshot",
            "it sent an answer to snapshot, which was not requested, while the session was init requested",
        ),
        ("unrequested_init", "it sent an answer to init, which was not requested, while the session was running"),
        ("snapshot_fails", "it reports: snapshot: state is not serializable"),
        ("init_fails", "init failed: field is required"),
    ],
)
def test_a_broken_protocol_ends_the_udf_at_once(name: str, words: str) -> None:
    assert error_of(spec(name, max_restarts=100)).startswith(f'UDF "{name}": {words}')


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exit_1", "its process ended with exit code 1; its last line on stderr: I end with 1"),
        ("killed", "its process was ended by SIGKILL"),
        ("closes_stdout", "it closed its stdout"),
    ],
)
def test_a_death_leads_to_a_restart_and_then_to_an_error(name: str, words: str) -> None:
    error = error_of(spec(name))
    assert words in error and error.endswith("; given up after 1 restarts in a row")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("closes_stdin", "it closed its input"),
        ("helper_keeps_stdout", "its process ended with exit code 1"),
        ("daemon_keeps_stdout", "its process ended with exit code 1"),
    ],
)
def test_an_end_that_leaves_a_descriptor_open_is_an_end(name: str, words: str) -> None:
    error = error_of(spec(name, max_restarts=0, timeout_seconds=3_600, answer_seconds=3_600))
    assert error == f'UDF "{name}": {words}; given up after 0 restarts in a row'


def test_the_words_of_an_error_are_cut_and_shown() -> None:
    error = error_of(spec("huge_error"))
    assert len(error) < 10_000 and "\\x1b[31m\\n" in error and error.isprintable()


@pytest.mark.nightly  # the gate has them over a socket
@pytest.mark.parametrize("name", ["hang", "no_keepalive", "stops_itself"])
def test_silence_is_named(name: str) -> None:
    error = error_of(spec(name, max_restarts=0, **QUICK))
    assert "keepalive: it was silent for 0.6 s; given up after 0 restarts in a row" in error


@pytest.mark.parametrize("name", ["no_snapshot", "only_keepalives"])
def test_keepalives_do_not_prolong_the_wait_for_a_snapshot(name: str) -> None:
    error = error_of(spec(name, answer_seconds=0.3))
    assert "it did not answer snapshot within 0.3 s (answer_seconds); given up after 1 restarts in a row" in error


def test_keepalives_do_not_prolong_the_wait_for_input_to_be_taken() -> None:
    host = UdfHost(spec("only_keepalives", answer_seconds=0.3, max_restarts=0), on_log=lambda line: None)
    host.start()
    with pytest.raises(UdfError, match=r"it did not take its input within 0.3 s \(answer_seconds\)"):
        host.process([Point(1, {}, {"text": "x" * MIB})] * 4)
    host.close()


def test_a_stop_ends_the_wait_for_a_udf_that_hangs() -> None:
    stop = threading.Event()
    host = UdfHost(spec("hang", timeout_seconds=3600, answer_seconds=3600), on_log=lambda line: None, stop=stop)
    host.start()
    host.process([Point(1)])
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(UdfStopped):
        host.checkpoint()
    host.close()


@pytest.mark.nightly  # the gate has one over a socket
@pytest.mark.parametrize(("name", "text"), [("short_text", "hello\\n"), ("text_at_start", "Starting my UDF")])
def test_text_is_noticed_at_once_and_shown(name: str, text: str) -> None:
    error = error_of(spec(name))
    assert f'bytes are not a message ("{text}' in error and "print to stderr instead" in error


def test_a_death_at_start_is_reported_at_once_with_its_words() -> None:
    error = error_of(spec("dies_at_start"))
    assert "exit code 1; its last line on stderr: ModuleNotFoundError: No module named 'numpyy'" in error
    assert "given up" not in error


def test_a_slow_start_has_a_time_of_its_own() -> None:
    assert "it did not answer info within 0.2 s (start_seconds)" in error_of(
        spec("slow_start", "60", start_seconds=0.2)
    )
    host = UdfHost(spec("slow_start", "1", timeout_seconds=0.5), on_log=lambda line: None)
    host.start()
    host.close()


def test_a_restore_that_fails_or_hangs() -> None:
    assert error_of(spec("restore_fails"), b"{}").endswith("restore failed: snapshot has version 1, this code reads 2")
    assert "it did not answer restore within 2 s" in error_of(spec("restore_hangs", start_seconds=2), b"{}")


@pytest.mark.parametrize("name", ["endless_output", "endless_batch"])
def test_endless_output_is_bounded(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = error_of(spec(name, output_limit_bytes=4 * MIB))
    assert "it sent more than 4,194,304 bytes since its last snapshot" in error
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_endless_stderr_is_read_in_bounded_lines() -> None:
    lines: list[str] = []
    host = UdfHost(spec("endless_stderr", **QUICK), on_log=lines.append)
    host.start()
    host.process([Point(1)])
    with pytest.raises(UdfError, match="keepalive"):
        host.checkpoint()
    assert lines and max(map(len, lines)) <= 4096


def test_a_large_announced_size_allocates_nothing() -> None:
    host = UdfHost(spec("huge_size"), on_log=lambda line: None)
    host.start()
    host.process([Batch([Point(1)])])
    with pytest.raises(UdfError, match="began a batch before the end"):  # the mirror's own follows
        host.checkpoint()


@pytest.mark.parametrize("name", ["lingers", "ignores_term"])
def test_a_udf_that_lingers_is_ended(name: str) -> None:
    lines: list[str] = []
    host = UdfHost(spec(name), on_log=lines.append)
    host.start()
    host.process([Point(1)])
    assert host.close() == [Point(1)]
    assert lines == ["dexorder: it still runs 0.1 s after the end of its input, and is ended"]


def test_others_go_on_beside_udfs_that_fail() -> None:
    """One mirror works on while failing UDFs run beside it in threads of the same process."""
    names = ["length_bomb", "exit_1", "endless_output", "text"]
    errors: dict[str, str] = {}

    def run(name: str) -> None:
        errors[name] = error_of(spec(name, output_limit_bytes=4 * MIB))

    threads = [threading.Thread(target=run, args=(each,)) for each in names]
    healthy = UdfHost(spec("none"), on_log=lambda line: None)
    healthy.start()
    for each in threads:
        each.start()
    outputs: list[Point | Batch] = []
    while any(each.is_alive() for each in threads) or not outputs:
        healthy.process([Point(len(outputs))])
        outputs += healthy.checkpoint()[0]
    healthy.close()
    assert outputs == [Point(n) for n in range(len(outputs))]
    assert healthy.restarts == 0 and sorted(errors) == sorted(names)
