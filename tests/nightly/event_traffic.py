"""Containers and clients of many users, in a separate process that takes its order on stdin.

    python -m tests.nightly.event_traffic

Mixed events go both ways, some on behalf of users that are not the container's; clients come and go. Each event says
in its payload whom it is for. One line of JSON at the end tells what was sent, what came, and what came to somebody
else.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import grpc
import uvloop

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as session_pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.integration.events import sessions
from tests.integration.events.container import CRITICAL, INFORMATIONAL, NORMAL, Container, event, topic, until

WINDOW = 300
"""Maximum of a container's events on 5571 without an ack."""
STOLEN_SHARE = 0.02
STAY_S = 4.0
LAST_S = 60.0
OUTSIDE_SHARE = 0.05
"""Providers are slower than sessions."""
OUTSIDE = [[pb.ACTIVE_SESSION, pb.TELEGRAM], [pb.TELEGRAM, pb.EMAIL], [pb.EMAIL], [pb.PUSH], [pb.DISCORD], [pb.SLACK]]


def addressed(user: str, event_id: str, priority: int, by: str) -> pb.UserEvent:
    """Return an event whose text has its user between two marks."""
    payload = json.dumps({"order_id": by, "symbol": f"FOR{user}END", "side": "buy", "quantity": "1"}).encode()
    ways = random.choice(OUTSIDE) if random.random() < OUTSIDE_SHARE else [pb.WEB]
    return event(user, event_id, priority, ways, payload=payload)


class Traffic:
    """Share of one process.

    Attributes:
        leaks: What came to somebody whom it was not for.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.sent: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.leaks: list[str] = []
        self.wrong: list[str] = []
        self.ended = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Send the share, then wait a moment for events in transit."""
        clients = [asyncio.create_task(self.client(user, token)) for user, token in self.order["tokens"].items()]
        share = self.order["events"] // len(self.order["containers"])
        await asyncio.gather(*(self.container(given, share) for given in self.order["containers"]))
        self.ended.set()
        await asyncio.gather(*clients)
        return {"sent": self.sent, "heard": self.heard, "leaks": self.leaks, "wrong": self.wrong[:20]}

    async def container(self, given: dict[str, Any], share: int) -> None:
        """Run one container that sends its share, each event once, and checks the acks."""
        curve = given["public"].encode(), given["secret"].encode(), self.order["server"].encode()
        open_acks: set[str] = set()
        async with Container(self.order["sub"], self.order["router"], curve) as container:
            listening = [asyncio.create_task(self.listen(container, open_acks)), asyncio.create_task(watch(container))]
            number = 0
            while number < share:
                number += 1
                await self.send_one(given, container, open_acks, f"{given['name']}-{number}")
                await until(lambda: len(open_acks) < WINDOW, LAST_S)
                if number % 20 == 0:
                    await asyncio.sleep(0)
            with suppress(TimeoutError):
                await until(lambda: not open_acks, LAST_S)
            if open_acks:
                self.wrong.append(f"{len(open_acks)} without an ack, for example {sorted(open_acks)[:3]}")
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)

    async def send_one(self, given: dict[str, Any], container: Container, acks: set[str], event_id: str) -> None:
        priority = random.choices((INFORMATIONAL, NORMAL, CRITICAL), (50, 25, 25))[0]
        if random.random() < STOLEN_SHARE:
            await self.steal(given, container, acks, event_id, priority)
            return
        made = addressed(random.choice(given["users"]), event_id, priority, given["name"])
        fast = topic(made.user_id) in container.topics
        self.sent[f"{pb.Priority.Name(made.delivery.priority)} {'5570' if fast or not priority else '5571'}"] += 1
        if priority != CRITICAL and (fast or priority == INFORMATIONAL):
            await container.publish(made)
            return
        acks.add(event_id)
        await container.send(made)

    async def steal(
        self, given: dict[str, Any], container: Container, acks: set[str], event_id: str, priority: int
    ) -> None:
        """Send for a foreign user, under their topic or under that of an own user."""
        made = addressed(random.choice(given["others"]), event_id, priority, "STOLEN")
        self.sent["for users not owned"] += 1
        if random.random() < 0.6:
            await container.publish(made, to=random.choice([made.user_id, *given["users"][:2]]))
        else:
            acks.add(event_id)
            await container.send(made)

    async def listen(self, container: Container, acks: set[str]) -> None:
        while True:
            ack = await container.any_ack()
            self.heard[ack.error_message or pb.AckStatus.Name(ack.status)] += 1
            acks.discard(ack.event_id)
            if (
                ack.status == pb.ACK_ERROR
                and ack.error_message != "user not owned"
                and "expired" not in ack.error_message
            ):
                self.wrong.append(f"{ack.event_id}: {ack.error_message}")

    async def client(self, user: str, token: str) -> None:
        """Run a user who connects, stays a while, disconnects and reconnects, with or without the cursor."""
        cursor: session_pb.Cursor | None = None
        native = random.random() < 0.5
        opening = sessions.native if native else sessions.browser
        at = self.order["grpc"] if native else self.order["web"]
        while not self.ended.is_set():
            with suppress(ConnectionError, grpc.aio.AioRpcError, TimeoutError):
                async with opening(at, token, cursor) as session:
                    cursor = await self.stay(user, session)
            await asyncio.sleep(random.random())
            cursor = cursor if random.random() < 0.7 else None

    async def stay(self, user: str, session: sessions.Session) -> session_pb.Cursor:
        cursor = session.opened.cursor
        until_s = time.monotonic() + random.random() * 2 * STAY_S
        while time.monotonic() < until_s and not session.ended:
            with suppress(TimeoutError):
                heard = await session.next(0.2)
                self.look(user, heard)
                if heard.sequence:
                    cursor = session.place(heard)
                    if random.random() < 0.8:
                        await session.ack(cursor)
        return cursor

    def look(self, user: str, heard: session_pb.SessionEvent) -> None:
        """Return whether it is for this user."""
        self.heard["by sessions"] += 1
        payload = heard.event.payload
        if heard.event.user_id != user or f"FOR{user}END".encode() not in payload or b"STOLEN" in payload:
            self.leaks.append(f"{user} got {heard.event.event_id} of {heard.event.user_id}: {payload!r}")


async def watch(container: Container) -> None:
    """Read subscriptions of the socket."""
    while True:
        heard = await container.fast.recv()
        (container.topics.add if heard[:1] == b"\x01" else container.topics.discard)(heard[1:])


async def main() -> None:
    order = json.loads(sys.stdin.readline())
    random.seed(order["seed"])
    print(json.dumps(await Traffic(order).run()), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
