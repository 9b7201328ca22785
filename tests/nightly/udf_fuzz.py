"""Mutated frames to the host's and to the agent's side of the UDF protocol, in this process."""

from __future__ import annotations

import random
import resource
import threading
from dataclasses import dataclass
from typing import TypeVar

from dexorder.udf import Batch, Edge, Function, Point
from dexorder.udf.agent import Agent
from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf.errors import UdfError
from dexorder_udf.framing import FrameSplitter, frame
from dexorder_udf.link import Link
from dexorder_udf.session import MessageKind
from dexorder_udf.spec import MIB, UdfSpec
from tests.nightly.message_fuzz import changed

LIMIT_BYTES = MIB
M = TypeVar("M")


@dataclass
class FuzzResult:
    """What happened to the streams of mutated frames."""

    frames: int = 0
    streams: int = 0
    refused: int = 0
    grown_kib: int = 0


class Collect(Function[list[int]]):
    def new_state(self) -> list[int]:
        return []

    def point(self, point: Point, state: list[int]) -> Point:
        state.append(len(point.fields))
        return point


class CollectBatches(Function[list[int]]):
    wants = Edge.BATCH
    provides = Edge.BATCH

    def new_state(self) -> list[int]:
        return []

    def batch(self, batch: Batch, state: list[int]) -> Batch:
        state.append(len(batch.points))
        return batch


class _NoConnection:
    """Connection that is never used: bytes are given to the link directly."""

    read_fd = write_fd = pid_fd = -1
    pid: int | None = None

    def half_close(self) -> None: ...

    def ending(self) -> str:
        return "ended"

    def was_killed(self) -> bool:
        return False

    def is_away(self) -> bool:
        return False

    def close(self, grace_seconds: float) -> None: ...


def responses(edge: Edge, source: random.Random) -> list[bytes]:
    """Return a valid stream of a running UDF, as messages."""
    point = pb.Point(
        time=source.getrandbits(60), name="n", tags={"t": "a"}, fieldsDouble={"c": 1.5}, fieldsInt={"i": 3}
    )
    data = [pb.Response(point=point) for _ in range(4)]
    if edge is Edge.BATCH:
        data = [
            pb.Response(begin=pb.BeginBatch(name="n", size=4)),
            *data,
            pb.Response(end=pb.EndBatch(name="n", tmax=1)),
        ]
    expected = [
        pb.Response(keepalive=pb.KeepaliveResponse(time=1)),
        pb.Response(snapshot=pb.SnapshotResponse(snapshot=source.randbytes(20))),
    ]
    unexpected = [
        pb.Response(info=pb.InfoResponse(options={"x": pb.OptionInfo(valueTypes=[pb.INT])})),
        pb.Response(init=pb.InitResponse(success=True)),
        pb.Response(restore=pb.RestoreResponse(error="no")),
        pb.Response(error=pb.ErrorResponse(error="because")),
    ]
    return [each.SerializeToString() for each in [*data, *expected, *_now_and_then(unexpected, source)]]


def requests(edge: Edge, source: random.Random) -> list[bytes]:
    """Return a valid stream of a host, as messages."""
    point = pb.Point(
        time=source.getrandbits(60), group="t=a", tags={"t": "a"}, fieldsString={"s": "x"}, fieldsBool={"b": True}
    )
    data = [pb.Request(point=point) for _ in range(4)]
    if edge is Edge.BATCH:
        data = [pb.Request(begin=pb.BeginBatch(group="t=a", size=4)), *data, pb.Request(end=pb.EndBatch(tmax=1))]
    expected = [
        pb.Request(keepalive=pb.KeepaliveRequest(time=1)),
        pb.Request(snapshot=pb.SnapshotRequest()),
        pb.Request(info=pb.InfoRequest()),
    ]
    unexpected = [
        pb.Request(restore=pb.RestoreRequest(snapshot=source.randbytes(20))),
    ]
    init = pb.Request(init=pb.InitRequest(options=[pb.Option(name="x")] if source.random() < 0.1 else []))
    return [each.SerializeToString() for each in [init, *data, *expected, *_now_and_then(unexpected, source)]]


def _now_and_then(messages: list[M], source: random.Random) -> list[M]:
    return [source.choice(messages)] if source.random() < 0.1 else []


def mutate(bodies: list[bytes], source: random.Random, kind: type[pb.Request] | type[pb.Response]) -> bytes:
    """Return the stream of frames with one to three changes of bytes, fields, messages, lengths or their order."""
    bodies = list(bodies)
    frames = [frame(each) for each in bodies]
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(frames))
        data = bytearray(frames[at])
        position = source.randrange(len(data)) if data else 0
        match source.randrange(12):
            case 0 if data:
                data[position] ^= 1 << source.randrange(8)
            case 1:
                data[position:] = b""
            case 2:
                data[position:position] = source.randbytes(source.randint(1, 12))
            case 3 if data:
                del data[position]
            case 4:
                frames.insert(at, bytes(data))
            case 5:
                source.shuffle(frames)
                continue
            case 6:
                data[:1] = source.choice([b"\xff" * 9 + b"\x01", b"\x80" * 11, b"\x80\x80\x80\x80\x20", b"\x00"])
            case 7:
                data = bytearray(b"a line that was printed\n")
            case 8 | 9 | 10:
                data = bytearray(frame(changed(kind.FromString(source.choice(bodies)), source)))
            case _ if data:  # inside the message, with a right length
                body = bytearray(bodies[source.randrange(len(bodies))])
                body[source.randrange(len(body))] = source.randrange(256)
                data = bytearray(frame(bytes(body)))
        frames[at] = bytes(data)
    return b"".join(frames)


def pieces(data: bytes, source: random.Random) -> list[bytes]:
    """Return bytes in two pieces, as a pipe may deliver them."""
    cut = source.randrange(len(data) + 1)
    return [data[:cut], data[cut:]]


def feed_host(data: list[bytes], edge: Edge) -> bool:
    """Give bytes to the host's side of a running session; return whether it refuses them."""
    spec = UdfSpec("fuzzed", prog="none", frame_limit_bytes=LIMIT_BYTES, output_limit_bytes=100 * LIMIT_BYTES)
    link = Link(spec, _NoConnection(), threading.Event())
    link._session.sends(MessageKind.INIT)
    link._session.receives(MessageKind.INIT)
    link._session.provides(edge)
    link._session.sends(MessageKind.SNAPSHOT)
    try:
        for each in data:
            link.take(each)
    except UdfError:
        return True
    return False


def feed_agent(data: list[bytes], edge: Edge) -> bool:
    """Give bytes to an agent; return whether it answers with an error. Its answers are whole frames."""
    agent = Agent(Collect if edge is Edge.STREAM else CollectBatches, LIMIT_BYTES)
    answers = FrameSplitter()
    for each in data:
        if agent.ended:
            break
        for body in answers.feed(agent.feed(each)):
            assert pb.Response.FromString(body).WhichOneof("message")
    assert not answers.pending
    return bool(agent.error)


def fuzz(frames: int, seed: int, *, host: bool) -> FuzzResult:
    """Feed at least this many frames of mutated streams; anything but a refusal propagates."""
    source = random.Random(seed)
    result = FuzzResult()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while result.frames < frames:
        edge = source.choice([Edge.STREAM, Edge.BATCH])
        bodies = (responses if host else requests)(edge, source)
        data = pieces(mutate(bodies, source, pb.Response if host else pb.Request), source)
        result.refused += (feed_host if host else feed_agent)(data, edge)
        result.streams += 1
        result.frames += len(bodies)
    result.grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return result
