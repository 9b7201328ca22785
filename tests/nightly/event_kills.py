"""Campaign of kill -9 at random points while CRITICAL events go to providers and to a session; none may be lost.

A third of the events is sent once more in every life until they are final; the others only until they are queued, as
from then on the gateway has the duty. Providers take a moment to answer, so that kills land between their taking an
event and the commit that knows of it: only then may a provider get an event again. Every other kill is at a random
time; before the others a provider has taken an event and has not answered, so that some kill is sure to land there.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import grpc

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as session_pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.integration.events.container import CRITICAL, Container, event, until
from tests.integration.events.provider_servers import HANG, Answer
from tests.integration.events.rig import Rig

USERS = 8
MOST_DELAY_S = 0.15
PROVIDER_S = 0.1
ANSWER = Answer(delay_seconds=PROVIDER_S)
DRAIN_S = 0.05
PATIENCE_S = 120.0
NAME = "spare-0"
_NUMBER = re.compile(r"E(\d+)E")
WAYS: list[list[int]] = [[pb.TELEGRAM], [pb.EMAIL], [pb.WEB], [pb.ACTIVE_SESSION, pb.TELEGRAM], [pb.PUSH, pb.TELEGRAM]]


def numbered(user: str, number: int) -> pb.UserEvent:
    """Return an event that the text in every channel identifies."""
    payload = b'{"order_id":"%d","symbol":"E%dE/USDT","side":"buy","quantity":"1","status":"filled"}' % (number, number)
    return event(user, f"e-{number}", CRITICAL, WAYS[number % len(WAYS)], payload=payload)


@dataclass
class Heard:
    """Events of a user's client, in order and each once; it resumes from its cursor."""

    user: str
    cursor: session_pb.Cursor | None = None
    ids: list[str] = field(default_factory=list)
    resets: int = 0

    async def listen(self, rig: Rig) -> None:
        """Receive until cancelled, across all restarts."""
        while True:
            with suppress(ConnectionError, grpc.aio.AioRpcError, TimeoutError):
                async with rig.session(self.user, "native", self.cursor) as session:
                    self.resets += session.reset
                    self.cursor = self.cursor or session.opened.cursor
                    while not session.ended:
                        with suppress(TimeoutError):
                            heard = await session.next(0.1)
                            assert heard.sequence > self.cursor.sequence, "a repeat"
                            self.ids.append(heard.event.event_id)
                            self.cursor = session.place(heard)
                            await session.ack(self.cursor)
            await asyncio.sleep(0.02)


@dataclass
class Campaign:
    """Restarts of a gateway on one file.

    Attributes:
        states: Event -> the state that the container was told last.
        exposed: Event -> kills at which a provider had it and the container did not know that it was final.
        in_flight: How many events that was at each kill.
        settled: Events that the log says were delivered.
    """

    rig: Rig
    sent: dict[str, pb.UserEvent] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    exposed: Counter[str] = field(default_factory=Counter)
    in_flight: list[int] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    async def run(self, events: int, kills: int) -> None:
        """Run a number of processes that are killed, and a last one in which all events must become final."""
        rig = self.rig
        for provider in rig.provider_servers.all:
            provider.usual = ANSWER
        self.users = [rig.user() for _ in range(USERS)]
        self.clients = [Heard(user) for user in self.users[: USERS // 2]]
        rig.gateway.start()
        for user in self.users:
            await rig.reachable(user)
        listening = [asyncio.create_task(client.listen(rig)) for client in self.clients]
        try:
            async with rig.container(NAME) as container:
                for life in range(kills):
                    await self._live(container, events * (life + 1) // kills, holds=life % 2 == 0)
                    await self._kill(container)
                    if life % 10 == 9:
                        final = sum(state == pb.DELIVERED for state in self.states.values())
                        print(f"{life + 1} kills, {len(self.sent)} sent, {final} known as delivered", flush=True)
                await self._end(container, events)
                await self._all_heard()
        finally:
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
        assert not self.errors, self.errors[:5]

    async def _live(self, container: Container, up_to: int, *, holds: bool) -> None:
        """Let the gateway deliver for a random time; with ``holds``, until a provider holds a call for good."""
        telegram = self.rig.provider_servers.telegram
        telegram.usual, before = HANG if holds else ANSWER, len(telegram.everything())
        await self._send(container, up_to)
        if holds:
            await until(lambda: len(telegram.everything()) > before)
        await self._listen(container, random.uniform(0, MOST_DELAY_S))

    async def _send(self, container: Container, up_to: int) -> None:
        """Send new events up to a number, and those that this process must get again."""
        for number in range(len(self.sent), up_to):
            # events for sessions go to users who have one
            user = random.choice(self.users[: USERS // 2] if number % len(WAYS) == 2 else self.users)
            made = numbered(user, number)
            self.sent[made.event_id] = made
        for number, (event_id, made) in enumerate(self.sent.items()):
            state = self.states.get(event_id)
            if state is None or (state == pb.QUEUED and number % 3 == 0):
                await container.send(made)

    async def _listen(self, container: Container, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            with suppress(TimeoutError):
                ack = await container.ack(left_s)
                self._told(ack)

    def _told(self, ack: pb.EventAck) -> None:
        before = self.states.get(ack.event_id)
        if ack.status == pb.ACK_ERROR or (before == pb.DELIVERED != ack.status):
            self.errors.append(f"{ack.event_id} was {before}, then {ack}")
        self.states[ack.event_id] = ack.status

    async def _kill(self, container: Container) -> None:
        self.rig.gateway.kill()
        self.rig.provider_servers.telegram.usual = ANSWER
        await self._listen(container, DRAIN_S)
        with_provider = {f"e-{number}" for number in self.provider_calls()}
        in_flight = [e for e in with_provider - self.settled if self.states.get(e) != pb.DELIVERED]
        self.exposed.update(in_flight)
        self.in_flight.append(len(in_flight))
        self.rig.gateway.start()
        for event_id in in_flight:  # the log already has these; the container gets no ack
            record = await self.rig.record(NAME, event_id)
            if record is not None and record.status == pb.DELIVERED:
                self.settled.add(event_id)

    async def _end(self, container: Container, events: int) -> None:
        await self._send(container, events)
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            await self._listen(container, 0.5)
            waiting = [each for each in self.sent if self.states.get(each) != pb.DELIVERED]
            records = [await self.rig.record(NAME, each) for each in waiting]
            if all(record is not None and record.status == pb.DELIVERED for record in records):
                return
        raise AssertionError(f"{len(waiting)} not delivered, for example {waiting[:3]}: {records[:3]}")

    async def _all_heard(self) -> None:
        """Check that each client got all its session's events once, after a moment for those in transit."""
        await asyncio.sleep(1)
        for client in self.clients:
            assert len(client.ids) == len(set(client.ids)), f"twice to {client.user}"
            assert not client.resets
            wanted = {e.event_id for e in self.sent.values() if e.user_id == client.user and list(ways(e)) == [pb.WEB]}
            assert wanted <= set(client.ids), f"{client.user} has not had {sorted(wanted - set(client.ids))[:5]}"

    def provider_calls(self) -> Counter[int]:
        """Return how often a provider got each event number."""
        calls = [
            call
            for provider in self.rig.provider_servers.all
            for user, call in provider.everything()
            if user in self.users
        ]
        return Counter(int(found[1]) for call in calls if (found := _NUMBER.search(call.text)))

    def repeats(self) -> dict[str, int]:
        """Return the calls after the first by event, where there are any."""
        return {f"e-{number}": count - 1 for number, count in self.provider_calls().items() if count > 1}

    def fail_if_wrong(self) -> None:
        """Check that only events in flight at a kill have duplicates."""
        wrong = {each: count for each, count in self.repeats().items() if count > self.exposed[each]}
        assert not wrong, f"repeats that no kill explains: {wrong}"


def ways(made: pb.UserEvent) -> list[int]:
    """Return the event's channels."""
    return [each.channel for each in made.delivery.channels]
