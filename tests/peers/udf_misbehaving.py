"""Agents that break the UDF protocol, each in one way: ``udf_misbehaving.py NAME``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from dexorder_protos.udf import udf_pb2 as pb
from tests.peers.udf_agent import Average, BatchMirror, Mirror, Wire, answer

OUT = sys.stdout.buffer


def send(raw: bytes) -> None:
    OUT.write(raw)
    OUT.flush()


def forever() -> None:
    while True:
        time.sleep(60)


def respond(response: pb.Response) -> None:
    Wire(sys.stdin.buffer, OUT).write(response)
    OUT.flush()


def endless() -> None:
    body = pb.Response(point=pb.Point(time=1, fieldsString={"text": "x" * 1000})).SerializeToString()
    while True:
        send(bytes((len(body) & 127 | 128, len(body) >> 7)) + body)


def endless_text() -> None:
    while True:
        sys.stderr.write("x" * 100_000)


def endless_batch() -> None:
    respond(pb.Response(begin=pb.BeginBatch()))
    endless()


def keepalives() -> None:
    while True:
        respond(pb.Response(keepalive=pb.KeepaliveResponse(time=1)))
        time.sleep(0.02)


def close_stdout() -> None:
    os.close(1)
    forever()


def close_stdin() -> None:
    os.close(0)
    forever()


def leave_a_helper(*, in_its_own_session: bool) -> Callable[[], None]:
    """Exit while a helper keeps stdout and stderr."""

    def act() -> None:
        if os.fork() == 0:
            if in_its_own_session:
                os.setsid()
            os.close(0)
            time.sleep(20)
            os._exit(0)
        os._exit(1)

    return act


def begin_twice() -> None:
    for _ in range(2):
        respond(pb.Response(begin=pb.BeginBatch()))


def divide() -> None:
    print(1 / 0)


def die(code: int) -> Callable[[], None]:
    def act() -> None:
        sys.stderr.write(f"I end with {code}\n")
        sys.stderr.flush()
        os._exit(code)

    return act


ON_POINT: dict[str, Callable[[], None]] = {
    "end_without_begin": lambda: respond(pb.Response(end=pb.EndBatch())),
    "empty_response": lambda: send(b"\x00"),
    "response_without_content": lambda: send(b"\x02\x48\x00"),
    "negative_size": lambda: respond(pb.Response(begin=pb.BeginBatch(size=-1))),
    "huge_size": lambda: respond(pb.Response(begin=pb.BeginBatch(size=2**62))),
    "begin_twice": begin_twice,
    "point_outside_batch": lambda: respond(pb.Response(point=pb.Point())),
    "batch_on_stream": lambda: respond(pb.Response(begin=pb.BeginBatch())),
    "length_bomb": lambda: send(b"\x80\x80\x80\x80\x80\x20"),
    "long_varint": lambda: send(b"\x80" * 10 + b"\x01"),
    "text": lambda: send(b"processing point 1 of many, this is a debug line\n" * 3),
    "short_text": lambda: send(b"hello\n"),
    "garbage": lambda: send(b"\x05\xff\xff\xff\xff\xff"),
    "exit_0": die(0),
    "exit_1": die(1),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "closes_stdout": close_stdout,
    "closes_stdin": close_stdin,
    "helper_keeps_stdout": leave_a_helper(in_its_own_session=False),
    "daemon_keeps_stdout": leave_a_helper(in_its_own_session=True),
    "stops_itself": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "huge_error": lambda: respond(pb.Response(error=pb.ErrorResponse(error="\x1b[31m\n" * 4_000_000))),
    "slow": lambda: time.sleep(0.01),
    "hang": forever,
    "only_keepalives": keepalives,
    "endless_output": endless,
    "endless_batch": endless_batch,
    "endless_stderr": endless_text,
    "error_response": lambda: respond(pb.Response(error=pb.ErrorResponse(error="no field 'close' in point"))),
    "exception": divide,
    "unrequested_init": lambda: respond(pb.Response(init=pb.InitResponse(success=True))),
}
"""What an agent does at its first point, or at the begin of a batch."""
BATCHES = {"end_without_begin", "negative_size", "huge_size", "begin_twice", "point_outside_batch", "endless_batch"}


def main() -> None:
    name = sys.argv[1]
    agent = BatchMirror() if name in BATCHES else Average() if name.startswith("restore") else Mirror()
    if name == "slow_start":
        time.sleep(float(sys.argv[2]))
    if name == "dies_at_start":
        raise ModuleNotFoundError("No module named 'numpyy'")
    if name == "text_at_start":
        print("Starting my UDF ...", flush=True)
    if name == "ignores_term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wire = Wire(sys.stdin.buffer, OUT)
    while (request := wire.read()) is not None:
        kind = request.WhichOneof("message")
        if kind == ("begin" if name in BATCHES else "point") and name in ON_POINT:
            ON_POINT[name]()
        if kind == "keepalive" and name == "no_keepalive":
            continue
        if kind == "snapshot" and name in ("no_keepalive", "no_snapshot"):
            continue
        if kind == "snapshot" and name == "snapshot_fails":
            respond(pb.Response(error=pb.ErrorResponse(error="snapshot: state is not serializable")))
            continue
        if kind == "snapshot" and name == "snapshot_raises":
            pb.Response(snapshot=pb.SnapshotResponse(snapshot="text"))  # type: ignore[arg-type]
        if kind == "restore" and name == "restore_fails":
            respond(pb.Response(restore=pb.RestoreResponse(error="snapshot has version 1, this code reads 2")))
            continue
        if kind == "restore" and name == "restore_hangs":
            forever()
        if kind == "init" and name == "unrequested_snapshot":
            respond(pb.Response(snapshot=pb.SnapshotResponse()))
        if kind == "init" and name == "init_fails":
            respond(pb.Response(init=pb.InitResponse(error="field is required")))
            continue
        for response in answer(agent, request):
            wire.write(response)
        OUT.flush()
    if name in ("lingers", "ignores_term"):
        forever()


if __name__ == "__main__":
    main()
