"""Every misbehaving UDF over a socket, a pipe and gRPC: an error with its cause or all outputs, and nothing hangs.

Over sockets it is part of every run, since its sessions are forks of one process. The others start Python for each.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_udf.errors import UdfError
from dexorder_udf.framing import FrameSplitter, frame, unwrap, wrap
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point
from dexorder_udf.spec import MIB, UdfSpec
from tests.paths import ROOT
from tests.peers.udf_misbehaving import BATCHES, NAMES

AGENT = str(ROOT / "tests" / "peers" / "udf_misbehaving.py")
DEAD = "its process |it closed |its gRPC stream ended"
"""It has ended, which a socket knows by the end of the stream only."""
SILENT = "keepalive: it was silent|did not answer snapshot"
MUCH = r"it sent more than [\d,]+ bytes since its last snapshot"
NO_MESSAGE = "not a message|a message has no content|gRPC stream ended"
REPORTS = "it reports: |gRPC stream ended"
WELL = ""
"""All outputs come, as of a healthy one."""

EXPECTED = {
    "end_without_begin": "sent the end of a batch",
    "empty_response": "a message is empty",
    "response_without_content": "a message has no content",
    "negative_size": "negative size -1",
    "huge_size": "began a batch before the end",
    "begin_twice": "began a batch before the end",
    "point_outside_batch": "sent a point outside a batch",
    "batch_on_stream": "sent begin of a batch on a stream edge",
    "length_bomb": f"more than the limit|{DEAD}",
    "long_varint": f"more than 64 bits|{DEAD}",
    "text": NO_MESSAGE,
    "short_text": f"{NO_MESSAGE}|{SILENT}",
    "json": f"{NO_MESSAGE}|{SILENT}",
    "utf16": f"{NO_MESSAGE}|{SILENT}",
    "garbage": NO_MESSAGE,
    "zero_bytes": "a message is empty",
    "half_a_frame": DEAD,
    "drip": f"{NO_MESSAGE}|{SILENT}",
    **dict.fromkeys(("exit_0", "exit_1", "exit_255", "killed", "closes_both", "segfault", "aborts"), DEAD),
    **dict.fromkeys(("exception", "recursion", "raises_in_c", "snapshot_raises", "dies_at_start"), DEAD),
    **dict.fromkeys(("closes_stdout", "helper_keeps_stdout", "daemon_keeps_stdout", "daemon"), f"{DEAD}|{SILENT}"),
    "forks_and_goes_on": WELL,
    "closes_stdin": f"it closed its input|{SILENT}",
    **dict.fromkeys(("stops_itself", "hang", "no_keepalive", "endless_stderr"), SILENT),
    **dict.fromkeys(("no_snapshot", "only_keepalives"), "did not answer snapshot"),
    **dict.fromkeys(("endless_output", "endless_batch", "empty_points", "empty_batches"), MUCH),
    **dict.fromkeys(("other_field_each", "other_group_each", "other_length_each"), MUCH),
    **dict.fromkeys(("long_name", "many_fields", "slow", "lingers", "ignores_term"), WELL),
    **dict.fromkeys(("error_response", "huge_error", "empty_error", "error_with_nul", "snapshot_fails"), REPORTS),
    **dict.fromkeys(("unrequested_init", "unrequested_info", "unrequested_restore"), "which was not requested"),
    "unrequested_snapshot": "which was not requested",
    "init_fails": "init failed",
    "text_at_start": f"{NO_MESSAGE}|{SILENT}|did not answer info",
}
QUICK = {name for name, words in EXPECTED.items() if "keepalive" in words or "answer snapshot" in words}
"""Those that may be silent; the others have time, however slow the machine is."""
PROCESS_ENDS = {"forks_and_goes_on": "its process ended with exit code 0"}
"""What a pipe may say instead: the host knows the process, and may see its end before all outputs have come."""


def test_the_table_has_each_of_them() -> None:
    assert EXPECTED.keys() == set(NAMES) and len(NAMES) >= 58


def settings(name: str) -> dict[str, Any]:
    quick = {"timeout_seconds": 0.3, "answer_seconds": 0.3} if name in QUICK else {"timeout_seconds": 30.0}
    limits = {"output_limit_bytes": MIB, "start_seconds": 2.0 if name == "text_at_start" else 30.0}
    return {"backoff_seconds": 0.0, "max_restarts": 0, "grace_seconds": 0.05} | quick | limits


def found(udf: UdfSpec) -> str:
    """Feed a UDF; return its error, or nothing if all outputs came."""
    host = UdfHost(udf, on_log=lambda line: None)
    point = Point(1, {}, {"value": 1.0})
    try:
        host.start()
        outputs = host.process([Batch([point]) if udf.name in BATCHES else point])
        outputs += host.checkpoint()[0]
    except UdfError as error:
        assert error.udf == udf.name and str(error).isprintable() and len(str(error)) < 10_000
        return error.reason
    finally:
        host.close()
    assert outputs
    return ""


def check(name: str, reason: str, words: str) -> None:
    if words == WELL:
        assert reason == "", name
    else:
        assert reason and re.search(words, reason), (name, reason)


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("s")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, AGENT, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        process_group=0,
    )
    assert process.stdout and process.stdout.readline() == b"ready\n"
    yield folder
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


SECONDS = {"empty_points", "huge_error", "other_group_each", "other_field_each", "other_length_each", "many_fields"}
"""Those that send so much that they take about a second."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.nightly if each in SECONDS else ()) for each in NAMES]
)
def test_over_a_socket(sockets: Path, name: str) -> None:
    check(name, found(UdfSpec(name, socket=str(sockets / name), **settings(name))), EXPECTED[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_over_pipes(name: str) -> None:
    udf = UdfSpec(name, prog=sys.executable, args=(AGENT, name), env={"PYTHONPATH": str(ROOT)}, **settings(name))
    reason = found(udf)
    if name not in PROCESS_ENDS or not reason.startswith(PROCESS_ENDS[name]):
        check(name, reason, EXPECTED[name])


@pytest.fixture(scope="module")
def bridge(sockets: Path) -> Iterator[str]:
    """A gRPC server that connects each stream to the socket that its metadata names."""

    def run(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = CURRENT[0]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(sockets / name))
            pool = ThreadPoolExecutor(1)

            def forward() -> None:
                try:
                    for message in requests:
                        connection.sendall(unwrap(message))
                    connection.shutdown(socket.SHUT_WR)
                except (OSError, grpc.RpcError):
                    pass

            pool.submit(forward)
            splitter = FrameSplitter(64 * MIB)
            context.add_callback(lambda: connection.close())
            while True:
                try:
                    data = connection.recv(65_536)
                except OSError:
                    return
                if not data:
                    return
                if bodies := splitter.feed(data):
                    yield wrap(bodies)
                splitter.check()

    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        run, request_deserializer=None, response_serializer=None
    )
    server = grpc.server(ThreadPoolExecutor(128), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("dexorder.udf.v1.UdfService", {"Run": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0.1).wait()


CURRENT = [""]


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_over_grpc(bridge: str, name: str) -> None:
    CURRENT[0] = name
    reason = found(UdfSpec(name, grpc_target=bridge, **settings(name)))
    check(name, reason, f"{EXPECTED[name]}|{DEAD}" if EXPECTED[name] else WELL)


MEMORY = """
import json, resource, sys
from dexorder_udf.errors import UdfError
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point
from dexorder_udf.spec import UdfSpec
agent, name, batch = sys.argv[1:]
host = UdfHost(UdfSpec(name, prog=sys.executable, args=(agent, name), max_restarts=0), on_log=lambda line: None)
host.start()
point = Point(1, {}, {"value": 1.0})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reason = ""
try:
    host.process([Batch([point]) if batch == "1" else point])
    host.checkpoint()
except UdfError as error:
    reason = error.reason
finally:
    host.close()
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, reason]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        "empty_points",
        "other_field_each",
        "other_group_each",
        "other_length_each",
        "endless_output",
        "endless_batch",
        "empty_batches",
        "huge_error",
        "long_name",
        "many_fields",
    ],
)
def test_memory_is_bounded_with_the_limits_of_every_day(name: str) -> None:
    """An attacker sends as much as it can: the process of the host grows by at most 300 MB."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, AGENT, name, str(int(name in BATCHES))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    grown_kb, reason = json.loads(done.stdout)
    assert grown_kb <= 300_000, (grown_kb, reason)
    print(f"{name}: {grown_kb / 1000:.0f} MB, {reason[:80]}")


def test_frames_of_the_bridge_are_those_of_the_agent() -> None:
    assert unwrap(wrap([b"ab", b""])) == frame(b"ab") + frame(b"")
