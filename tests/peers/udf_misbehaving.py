"""Agents that break the UDF protocol, each in one way: ``udf_misbehaving.py NAME``.

``udf_misbehaving.py --folder FOLDER`` serves all of them, at the socket FOLDER/NAME, each connection in a new process.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf.framing import encode_varint
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


def close_both() -> None:
    os.close(0)
    os.close(1)
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


def leave_a_daemon() -> None:
    """Fork twice and exit, as daemons do; the grandchild keeps everything open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(20)
        os._exit(0)
    os._exit(0)


def fork_and_go_on() -> None:
    """Leave the session to a child: the process that the host knows ends."""
    if os.fork():
        os._exit(0)


def empty_points() -> None:
    body = pb.Response(point=pb.Point()).SerializeToString()
    many = (bytes((len(body),)) + body) * 20_000
    while True:
        send(many)


def many_points(point: Callable[[int], pb.Point]) -> Callable[[], None]:
    """Send points without an end, each as ``point`` makes the n-th."""

    def act() -> None:
        number = 0
        while True:
            bodies = [pb.Response(point=point(number + n)).SerializeToString() for n in range(500)]
            number += len(bodies)
            send(b"".join(encode_varint(len(each)) + each for each in bodies))

    return act


def empty_batches() -> None:
    while True:
        respond(pb.Response(begin=pb.BeginBatch()))
        respond(pb.Response(end=pb.EndBatch()))


def half_a_frame() -> None:
    send(b"\x40\x8a\x01")
    os._exit(1)


def drip() -> None:
    """Send a frame byte by byte, without an end."""
    send(b"\xff\xff\x7f")
    while True:
        send(b"\x8a")
        time.sleep(0.005)


def begin_twice() -> None:
    for _ in range(2):
        respond(pb.Response(begin=pb.BeginBatch()))


def recurse() -> None:
    recurse()


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
    "daemon": leave_a_daemon,
    "forks_and_goes_on": fork_and_go_on,
    "empty_points": empty_points,
    "other_field_each": many_points(lambda n: pb.Point(time=n, fieldsDouble={f"field{n}": 1.0})),
    "other_group_each": many_points(lambda n: pb.Point(time=n, tags={"t": str(n)}, group=f"t={n}", dimensions=["t"])),
    "other_length_each": many_points(lambda n: pb.Point(time=1 << 60, fieldsString={"t": "x" * (n % 900)})),
    "long_name": lambda: respond(pb.Response(point=pb.Point(name="n" * 500_000))),
    "many_fields": lambda: respond(pb.Response(point=pb.Point(fieldsDouble={f"f{n}": 1.0 for n in range(5_000)}))),
    "empty_batches": empty_batches,
    "half_a_frame": half_a_frame,
    "drip": drip,
    "closes_both": close_both,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "aborts": os.abort,
    "exit_255": die(255),
    "raises_in_c": lambda: print(bytearray(1 << 62)),
    "recursion": recurse,
    "unrequested_info": lambda: respond(pb.Response(info=pb.InfoResponse())),
    "unrequested_restore": lambda: respond(pb.Response(restore=pb.RestoreResponse(success=True))),
    "empty_error": lambda: respond(pb.Response(error=pb.ErrorResponse())),
    "error_with_nul": lambda: respond(pb.Response(error=pb.ErrorResponse(error="a\0b\x1b[2J\u202e"))),
    "json": lambda: send(b'{"time": 1, "fields": {"mean": 1.5}}\n'),
    "utf16": lambda: send("a text".encode("utf-16")),
    "zero_bytes": lambda: send(bytes(5)),
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
BATCHES = {
    "end_without_begin",
    "negative_size",
    "huge_size",
    "begin_twice",
    "point_outside_batch",
    "endless_batch",
    "empty_batches",
}
AT_START = (
    "dies_at_start",
    "text_at_start",
    "no_keepalive",
    "no_snapshot",
    "snapshot_fails",
    "snapshot_raises",
    "init_fails",
    "unrequested_snapshot",
    "lingers",
    "ignores_term",
)
NAMES = (*ON_POINT, *AT_START)


def main() -> None:
    if sys.argv[1] == "--folder":
        serve(Path(sys.argv[2]))
    session(*sys.argv[1:])


def serve(folder: Path) -> None:
    """Fork a process for each connection, whose stdin and stdout it is; the fork costs no start of Python."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    poll, listeners = select.poll(), dict[int, tuple[socket.socket, str]]()
    for name in NAMES:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / name))
        listener.listen()
        listeners[listener.fileno()] = listener, name
        poll.register(listener, select.POLLIN)
    print("ready", flush=True)
    while True:
        for number, _ in poll.poll():
            connection, name = listeners[number][0].accept()[0], listeners[number][1]
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each, _ in listeners.values():
                    each.close()
                os.dup2(connection.fileno(), 0)
                os.dup2(connection.fileno(), 1)
                connection.close()
                try:
                    session(name)
                finally:
                    os._exit(1)
            connection.close()


def session(name: str, *arguments: str) -> None:
    """Serve one session over stdin and stdout."""
    agent = BatchMirror() if name in BATCHES else Average() if name.startswith("restore") else Mirror()
    if name == "slow_start":
        time.sleep(float(arguments[0]))
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
