"""Functions on the SDK under our host, over each way to reach them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder.errors import UdfServeError
from dexorder.udf.servers import serve_socket, start_server
from dexorder_udf.errors import UdfError
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point, Value
from dexorder_udf.spec import UdfSpec
from tests.paths import ROOT
from tests.peers.udf_functions import FUNCTIONS

SCRIPT = str(ROOT / "tests" / "peers" / "udf_functions.py")
WAYS = ("stdio", "socket", "grpc")


@contextmanager
def served(way: str, name: str, folder: Path, **settings: Any) -> Iterator[UdfSpec]:
    """Serve a function in one of the ways, and yield its declaration."""
    if way == "stdio":
        yield UdfSpec(name, prog=sys.executable, args=(SCRIPT, name), env={"PYTHONPATH": str(ROOT)}, **settings)
    elif way == "socket":
        path, stop = folder / "udf.sock", threading.Event()
        thread = threading.Thread(target=serve_socket, args=(FUNCTIONS[name], path), kwargs={"stop": stop})
        thread.start()
        try:
            yield UdfSpec(name, socket=str(path), **settings)
        finally:
            stop.set()
            thread.join()
            assert not path.exists()
    else:
        server, port = start_server(FUNCTIONS[name], "127.0.0.1:0")
        try:
            yield UdfSpec(name, grpc_target=f"127.0.0.1:{port}", **settings)
        finally:
            server.stop(None).wait()


def started(spec: UdfSpec, snapshot: bytes | None = None) -> UdfHost:
    host = UdfHost(spec, on_log=lambda line: None)
    host.start(snapshot)
    return host


def points(first: int, last: int, group: str = "a") -> list[Point]:
    return [Point(n, {"t": group}, {"value": float(n)}, "n", ("t",)) for n in range(first, last)]


@pytest.mark.parametrize("way", WAYS)
def test_points_state_and_the_rest_at_the_end(way: str, tmp_path: Path) -> None:
    with served(way, "chatty", tmp_path) as spec:
        host = started(spec)
        host.process(points(0, 300))
        outputs, snapshot = host.checkpoint()
        assert snapshot == b'{"version":1,"function":"Chatty","groups":{"t=a":[300]}}'
        assert [each.fields["number"] for each in outputs if isinstance(each, Point)] == list(range(1, 301))
        assert host.close() == [Point(0, {"group": "t=a"}, {"total": 300})]
        other = started(spec, snapshot)
        other.process(points(300, 301))
        assert other.checkpoint()[0] == [Point(300, {"t": "a"}, {"number": 301}, "n", ("t",))]
        other.close()


@pytest.mark.parametrize("way", WAYS)
def test_much_data_in_both_directions(way: str, tmp_path: Path) -> None:
    text: dict[str, Value] = {"text": "x" * 20_000}
    mixed = [Point(n, {}, text if n % 100 == 0 else {"n": n}) for n in range(10_000)]
    with served(way, "mirror", tmp_path) as spec:
        host = started(spec)
        assert host.process(mixed) + host.checkpoint()[0] == mixed
        host.close()
    batches = [Batch(points(0, size), tags={"t": "a"}, tmax_ns=size) for size in (0, 1, 2500)]
    for each in batches:
        each.points = [Point(point.time_ns, point.tags, point.fields) for point in each.points]
    with served(way, "batch_mirror", tmp_path) as spec:
        host = started(spec)
        assert host.process(batches) + host.checkpoint()[0] == batches
        host.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_is_the_udfs_error(way: str, tmp_path: Path) -> None:
    with served(way, "chatty", tmp_path, options={"fail_at": 5}) as spec:
        host = started(spec)
        where = r"\(/.*udf_functions.py, line \d+, in point\)"
        with pytest.raises(UdfError, match=rf'^UDF "chatty": it reports: RuntimeError: cannot handle 5 {where}$'):
            host.process(points(0, 10))
            host.checkpoint()
        host.close()


@pytest.mark.parametrize("way", WAYS)
def test_sessions_of_one_server_have_states_of_their_own(way: str, tmp_path: Path) -> None:
    with served(way, "chatty", tmp_path) as spec:
        hosts = [started(spec) for _ in range(3)]
        for number, host in enumerate(hosts):
            host.process(points(0, number + 1))
        snapshots = [host.checkpoint()[1] for host in hosts]
        for host in hosts:
            host.close()
    assert [each[-5:-3] for each in snapshots] == [b"[1", b"[2", b"[3"]


def test_print_goes_to_stderr() -> None:
    lines: list[str] = []
    spec = UdfSpec("chatty", prog=sys.executable, args=(SCRIPT, "chatty"), env={"PYTHONPATH": str(ROOT)})
    host = UdfHost(spec, on_log=lines.append)
    host.start()
    host.process(points(0, 3))
    host.checkpoint()
    host.close()
    assert lines == ["point 0", "point 1", "point 2"]


def test_output_does_not_wait_for_more_input() -> None:
    """Kapacitor requests keepalives only at half of the timeout; a buffered agent would let its output wait for it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, SCRIPT, "mirror"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, "PYTHONPATH": str(ROOT)},
        bufsize=0,
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(bytes.fromhex("021200058a01020807"))  # init; a point at 7
        assert process.stdout.read(5) == bytes.fromhex("0412020801")
        assert process.stdout.read(6) == bytes.fromhex("058a01020807")
        process.stdin.close()
        assert process.stdout.read() == b"" and process.wait() == 0


def test_a_stale_socket_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    path = tmp_path / "udf.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with served("socket", "mirror", tmp_path) as spec:
        started(spec).close()
        with pytest.raises(UdfServeError, match="another server listens there"):
            serve_socket(FUNCTIONS["mirror"], path)
    path.write_text("mine")
    with pytest.raises(UdfServeError, match="a file that is not a socket is in the way"):
        serve_socket(FUNCTIONS["mirror"], path)


def test_an_address_in_use(tmp_path: Path) -> None:
    with served("grpc", "mirror", tmp_path) as spec:
        assert spec.grpc_target
        with pytest.raises(UdfServeError, match="gRPC"):
            start_server(FUNCTIONS["mirror"], spec.grpc_target)


def test_a_message_that_has_no_frames_is_bad_input(tmp_path: Path) -> None:
    with served("grpc", "mirror", tmp_path) as spec:
        assert spec.grpc_target
        with grpc.insecure_channel(spec.grpc_target) as channel:
            run: Any = channel.stream_stream("/dexorder.udf.v1.UdfService/Run")
            for wrong in (b"\x12\x00", b"\x0a\x05a", b"\x0a" + b"\xff" * 11):
                with pytest.raises(grpc.RpcError) as refused:
                    next(run(iter([wrong]), timeout=30))
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "a gRPC message has" in str(refused.value.details())
        started(spec).close()


@pytest.mark.parametrize("own_token", [None, "for-udfs"])
def test_a_remote_udf_never_receives_the_suites_token(own_token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of a UDF belongs to somebody else, who could speak for the pipeline with its token."""
    monkeypatch.setenv("DEXORDER_TOKEN", "of-the-pipeline")
    if own_token:
        monkeypatch.setenv("DEXORDER_UDF_CHANNEL_TOKEN", own_token)
    received: list[tuple[str, str | bytes]] = []

    def run(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        received.extend(context.invocation_metadata())
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "a thief")

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = grpc.method_handlers_generic_handler(
        "dexorder.udf.v1.UdfService", {"Run": grpc.stream_stream_rpc_method_handler(run)}
    )
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(UdfError, match="a thief"):
            UdfHost(UdfSpec("theft", grpc_target=f"127.0.0.1:{port}")).start()
    finally:
        server.stop(None).wait()
    tokens = [value for name, value in received if name == "authorization"]
    assert tokens == ([f"Bearer {own_token}"] if own_token else [])


@pytest.mark.parametrize("name", ["rsi", "batch_outliers"])
def test_shipped_functions_run_as_programs(name: str) -> None:
    host = started(UdfSpec(name, prog=sys.executable, args=("-m", "dexorder.udf.functions", name), options={}))
    assert sorted(host.info.options) == (["field", "output", "size"] if name == "rsi" else ["field", "scale"])
    host.close()
