"""The other gateways of a group, to which acks and offsets of their partitions are forwarded (decision 83).

this gateway    the peers                   result of an ack
has it          -                           it is taken
lacks it        one has it                  that one takes it
lacks it        all lack it, for a while    the group rebalances: both are asked again
lacks it        all lack it                 NotAssigned
lacks it        one can't be reached        Unavailable; the ack may be sent again
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import structlog

from dexorder_common.config import split_address
from dexorder_common.kafka.member_commits import NotAssigned
from dexorder_common.model.errors import Exhausted, Unavailable
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.client_retry import error_text
from dexorder_common.rpc.error_details import reason_in
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc

log = structlog.get_logger(__name__)
FORWARDED = "x-dexorder-forwarded"
"""Metadata of a call that another gateway has forwarded; it is not forwarded again."""
WAIT_SECONDS = 10.0
"""Longest time in which an ack is tried while its partition is without a reader."""
MAX_WAITING = 1_000
"""Acks that wait in a gateway for a peer or a rebalance; one more is refused."""
_CALL_SECONDS = 3.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
_RESOLVE_SECONDS = 5.0
_MAX_HINTS = 10_000

Place = tuple[str, str, str, int]
"""Cluster, group, topic and partition."""


class _Peer(NamedTuple):
    address: str
    channel: grpc.aio.Channel
    stub: Any


class _Refusal(NamedTuple):
    """Why no peer took a call; ``unreachable`` is empty if each of them said that it does not have the partition."""

    unreachable: str = ""


@dataclass
class Peers:
    """Channels to the other gateways.

    Args:
        names: host:port of gateways; a name stands for every address that it resolves to.
    """

    names: Sequence[str] = ()
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _resolved_s: float = float("-inf")
    _hints: dict[Place, str] = field(default_factory=dict)
    _waiting: int = 0

    async def take(
        self, place: Place, here: Callable[[], None], forward: Callable[[Any, float], Awaitable[Any]], *, wait: bool
    ) -> None:
        """Have an ack taken here or by a peer.

        Args:
            here: Takes it here, or raises NotAssigned.
            forward: Makes the call with a peer's stub and a timeout.
            wait: Try again while no gateway has the partition.

        Raises:
            NotAssigned: No gateway has the partition.
            Unavailable: A peer that may have it can't be reached.
            Exhausted: Too many acks wait.
        """
        async with self._slot():
            deadline_s, pause_s = time.monotonic() + WAIT_SECONDS, _FIRST_PAUSE_SECONDS
            while True:
                try:
                    return here()
                except NotAssigned as error:
                    not_here = error
                refusal = await self.forwarded(place, forward)
                if refusal is None:
                    return None
                if not wait or time.monotonic() + pause_s > deadline_s:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_SECONDS)
            if refusal.unreachable:
                raise Unavailable(f"{not_here}, and {refusal.unreachable}; try again")
            raise NotAssigned(f"{not_here}, nor to another one" if self.names else str(not_here))

    async def forwarded(self, place: Place, forward: Callable[[Any, float], Awaitable[Any]]) -> _Refusal | None:
        """Return None once a peer has taken a call, the one that took the last one of this place first."""
        unreachable = ""
        peers = await self._current()
        hint = self._hints.get(place)
        for peer in sorted(peers, key=lambda each: each.address != hint):
            try:
                await forward(peer.stub, _CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                if reason_in(error) != "NOT_ASSIGNED":
                    unreachable = f"gateway {peer.address} does not take it: {error_text(error)}"
            else:
                if len(self._hints) >= _MAX_HINTS:
                    self._hints.clear()
                self._hints[place] = peer.address
                return None
        return _Refusal(unreachable)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._waiting >= MAX_WAITING:
            raise Exhausted(f"{self._waiting} acks wait for other gateways already")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _current(self) -> list[_Peer]:
        """Return the peers; names are resolved again now and then, as gateways come and go."""
        if self.names and time.monotonic() - self._resolved_s > _RESOLVE_SECONDS:
            self._resolved_s = time.monotonic()
            await self._resolve()
        return list(self._peers.values())

    async def _resolve(self) -> None:
        found: dict[str, str] = {}
        for name in self.names:
            host, port = split_address(name)
            try:
                answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
            except OSError as error:
                log.warning("a name of the other gateways is not known", name=name, reason=str(error))
                found |= dict.fromkeys(self._peers, host)  # the old addresses, until the resolver answers
                continue
            for *_, socket_address in answers:
                ip = str(socket_address[0])
                found[f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"] = host
        for gone in self._peers.keys() - found.keys():
            await self._peers.pop(gone).channel.close()
        for address in found.keys() - self._peers.keys():
            # Certificates are for the name.
            channel = open_channel(address, options=[("grpc.ssl_target_name_override", found[address])])
            self._peers[address] = _Peer(address, channel, rpc.KafkaPixyStub(channel))

    async def aclose(self) -> None:
        """Close the channels."""
        for peer in self._peers.values():
            await peer.channel.close()
