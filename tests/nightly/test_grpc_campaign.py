"""Changed messages to every RPC of the suite: refused as bad input, never a fault of ours.

    DEXORDER_SOAK_PROTOBUFS=20000   # calls of each RPC

An RPC that streams, or may wait, is called less often, since every message that happens to be sound costs a wait.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from dexorder_gateway.events.sessions.user_tokens import sign
from tests.nightly.message_fuzz import changed
from tests.nightly.rpc_samples import SAMPLES, USER, rpcs
from tests.paths import ROOT
from tests.rig.processes import free_ports
from tests.rig.suite import Suite, running_suite

MESSAGES = int(os.environ.get("DEXORDER_SOAK_PROTOBUFS", "20000"))
LONG_SHARE = 20
CALLERS = 16
CALL_SECONDS, LONG_SECONDS = 20.0, 0.05
OURS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Codes that would be a fault of the server here; and INTERNAL, where it is not one that the protocol asks for."""
UNEXPECTED, OVERTAKEN = "internal error", "was changed by another call; try again"
ENDED_FIRST = "Internal error from Core"
"""What grpcio says of a call whose server has answered with an error before the client sent its last message."""
UDF = "from dexorder.udf.functions import FUNCTIONS; from dexorder.udf.servers import serve_grpc; "
USERS_OWN = "/dexorder.events.v1.EventService/"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(MESSAGES // 10 + 900)]


class Served:
    """The suite, and an agent of a UDF."""

    def __init__(self, suite: Suite, agent: subprocess.Popen[bytes], agent_port: int) -> None:
        self._suite = suite
        self._agent = agent
        self._agent_port = agent_port
        self._token = sign(suite.directory / "jwt-keys" / "suite.key", USER)

    def address(self, part: str) -> str:
        return f"127.0.0.1:{self._agent_port}" if part == "udf" else self._suite.address(part)

    def pid(self, part: str) -> int | None:
        """Return the part's process; None for an agent that has ended."""
        if part != "udf":
            return self._suite.pid(part)
        return self._agent.pid if self._agent.poll() is None else None

    def metadata(self, path: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),) if path.startswith(USERS_OWN) else ()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("fuzz") / "state"
    (port,) = free_ports(1)
    command = [sys.executable, "-c", f"{UDF}serve_grpc(FUNCTIONS['ema'], '127.0.0.1:{port}')"]
    with running_suite(folder, "--only", "kafka,relay,gateway,udsource,spark") as suite:
        agent = subprocess.Popen(command, cwd=ROOT)
        try:
            yield Served(suite, agent, port)
        finally:
            agent.kill()
            agent.wait()


@pytest.mark.parametrize("path", SAMPLES)
async def test_mutated_messages_are_bad_input_and_nothing_else(served: Served, path: str) -> None:
    part, method = SAMPLES[path].part, rpcs()[path]
    before = served.pid(part)
    async with grpc.aio.insecure_channel(served.address(part)) as channel:
        await asyncio.wait_for(channel.channel_ready(), CALL_SECONDS)
        seen, slowest_s = await flood(channel, path, method, served.metadata(path))
    assert served.pid(part) == before and before is not None
    codes = ", ".join(f"{code.name} {count:,}" for code, count in seen.most_common())
    print(f"\n| {path[1:]} | {sum(seen.values()):,} | {codes} | {slowest_s:.2f} s |")
    assert not OURS & set(seen), seen


async def flood(
    channel: Any, path: str, method: MethodDescriptor, metadata: Any
) -> tuple[Counter[grpc.StatusCode], float]:
    """Return the number of answers by code to so many changed calls of several callers, and the slowest one."""
    sample, random, seen, slowest_s = SAMPLES[path], Random(path), Counter[grpc.StatusCode](), 0.0
    is_long = sample.waits or method.client_streaming or method.server_streaming
    sound = sample.messages
    left = iter(range(MESSAGES // LONG_SHARE if is_long else MESSAGES))

    async def caller() -> None:
        nonlocal slowest_s
        for _ in left:
            messages = [each.SerializeToString() for each in sound]
            place = random.randrange(len(sound))
            messages[place] = changed(sound[place], random)
            started_s = time.monotonic()
            seen[await code_of(called(channel, path, method, messages, metadata, is_long))] += 1
            slowest_s = max(slowest_s, time.monotonic() - started_s)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    if is_long:
        seen[grpc.StatusCode.OK] += seen.pop(grpc.StatusCode.DEADLINE_EXCEEDED, 0)
    return +seen, slowest_s


async def called(
    channel: Any, path: str, method: MethodDescriptor, messages: Sequence[bytes], metadata: Any, is_long: bool
) -> None:
    """Call an RPC with serialized messages, and read what it answers until it ends or has no more to say."""
    sends, answers = method.client_streaming, method.server_streaming
    kind = f"{'stream' if sends else 'unary'}_{'stream' if answers else 'unary'}"
    call = getattr(channel, kind)(path)(
        iter(messages) if sends else messages[0],
        timeout=LONG_SECONDS if is_long else CALL_SECONDS,
        metadata=metadata,
    )
    if not answers:
        await call
    while answers and await call.read() is not grpc.aio.EOF:
        pass


async def code_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        details = error.details() or ""
        if error.code() is grpc.StatusCode.UNAVAILABLE and details.endswith(OVERTAKEN):
            return grpc.StatusCode.OK
        if details == ENDED_FIRST:
            return grpc.StatusCode.CANCELLED
        return grpc.StatusCode.UNKNOWN if details.startswith(UNEXPECTED) else error.code()
    return grpc.StatusCode.OK
