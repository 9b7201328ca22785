"""Load on a suite, in a mesh or not, and the account of each record and event: 0 lost, 0 doubled, 0 acks swallowed."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol, Self

import aiohttp
import grpc
from confluent_kafka import Consumer, TopicPartition

from dexorder.errors import GatewayUnreachable
from dexorder.events import Publisher
from dexorder.events import gateway_client as client
from dexorder.events.outcomes import Outcome
from dexorder_gateway.events.sessions.user_tokens import sign
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from tests.gateway_thread import GatewayUser
from tests.integration.events.container import CRITICAL, event
from tests.nightly.http_user import HttpUser
from tests.nightly.numbered import BEHIND, CALL_SECONDS, Ledger, NoCommits, PixyWriter, Reader, is_going
from tests.rig.kafka import create_topic
from tests.rig.processes import until

PARTITIONS = 4
PATIENCE_S = 120.0
BACK_SECONDS = 3.0
"""Time in which a gateway whose sidecar is back connects to Kafka, and learns that it has lost its partitions."""
KEY_PATIENCE_S = 20.0
"""Time for which a record is tried; the gateways wait 10 s for what another one has begun."""
USER = "alice"


class ReachedSuite(Protocol):
    """A running suite, and where its ports are reached: through a mesh or directly."""

    @property
    def directory(self) -> Path:
        """Return the folder of its state."""

    def reached(self, port: str) -> str:
        """Return where calls to a port go."""

    def address(self, part: str) -> str:
        """Return host:port of a part."""

    def logs(self) -> str:
        """Return the end of the parts' logs."""


class MeshWriter(PixyWriter):
    """Writer that gives each record a key and repeats the call until it is answered, or the answer is uncertain.

    Attributes:
        repeated: Calls that it made again; proxies have made others.
        uncertain: Records of which it was told that they may have been written, or that it gave up.
    """

    PAUSE_S = 0.05
    repeated = uncertain = 0

    def step(self) -> None:
        if len(self._ledger.written) - len(self._ledger.reads) > 5 * BEHIND:
            self.pause()
            return
        number = self._numbers()
        request = pixy.ProdRq(
            topic=self._topic, key_undefined=True, message=b"%d" % number, idempotency_key=f"{number}"
        )
        until_s = time.monotonic() + KEY_PATIENCE_S
        while True:
            try:
                answer = self._gateway.stub.Produce(request, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.ABORTED or time.monotonic() > until_s:
                    self.uncertain += 1
                    break
                if not is_going(error) and error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self._ledger.unexpected[f"Produce: {error.code()} {error.details()}"] += 1
                self.repeated += 1
                self.pause()
            else:
                self._ledger.write(number, answer.partition)
                break
        self.pause()


class Records(ExitStack):
    """Numbered records through both gateways, and consumers that ack them, over gRPC and HTTP; a context manager."""

    def __init__(self, suite: ReachedSuite) -> None:
        super().__init__()
        self.ledger = Ledger()
        self._suite = suite
        self._kafka = suite.address("kafka")
        self._users = (GatewayUser(), HttpUser())

    def __enter__(self) -> Self:
        self.topic = create_topic(self._kafka, PARTITIONS)
        numbers = itertools.count()
        self.writers: list[MeshWriter] = []
        for user, port in zip(self._users, ("gateway", "pixy"), strict=True):
            user.connect(self._suite.reached(port))
            self.enter_context(Reader(user, self.topic, self.ledger))
            writer = MeshWriter(user, self.topic, self.ledger, lambda: next(numbers), async_mode=False)
            self.writers.append(self.enter_context(writer))
        return self

    @contextmanager
    def no_commits(self) -> Iterator[None]:
        """Record that a gateway is killed, or can't reach Kafka, with acks that are not committed."""
        since_s = time.monotonic()
        yield
        for user in self._users:
            self.ledger.no_commits(user, NoCommits(since_s, time.monotonic() + BACK_SECONDS))

    def check(self) -> None:
        """Wait until everything is acked; then check the account, and that Kafka has the acks."""
        for each in self.writers:
            each.stop()
        until(self.ledger.all_acked, PATIENCE_S, self._explain)
        until(lambda: self._left() == 0, PATIENCE_S, self._explain)
        self.close()
        self.ledger.fail_if_wrong()

    def _explain(self) -> str:
        return f"not acked: {self.ledger.unacked()}\nnot committed: {self._left()}\n{self._suite.logs()}"

    def _left(self) -> int:
        """Return the records that the group's commits do not cover."""
        consumer = Consumer({"bootstrap.servers": self._kafka, "group.id": self.topic, "log_level": 2})
        try:
            parts = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
            ends = [consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts]
            commits = [max(0, part.offset) for part in consumer.committed(parts, timeout=30)]
            time.sleep(0.2)
            return sum(ends) - sum(commits)
        finally:
            consumer.close()


class Events:
    """User events by gRPC and by ZeroMQ, and a session that receives them; a context manager.

    Attributes:
        heard: How often the session has had each event.
        seen: The same of the page's session, which only looks on.
        ends: The ends of each event that its publisher was told.
    """

    def __init__(self, suite: ReachedSuite) -> None:
        self.heard: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.sent: list[str] = []
        self.ends: Counter[tuple[str, str]] = Counter()
        self.notes: Counter[str] = Counter()
        self._suite = suite
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="events")
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def check(self) -> None:
        """Wait until every event is final; then check that each came once and was told as delivered."""
        self.__exit__()
        assert self._error is None, self._error
        assert self.heard == Counter(self.sent), self.heard - Counter(self.sent) or Counter(self.sent) - self.heard
        assert self.seen == self.heard, (self.seen - self.heard, self.heard - self.seen)
        assert self.ends == Counter((each, "DELIVERED") for each in self.sent)

    async def _main(self) -> None:
        try:
            opened = asyncio.Event()
            sessions = [asyncio.create_task(each) for each in (self._session(), self._page(opened))]
            await asyncio.wait_for(opened.wait(), PATIENCE_S)
            await asyncio.gather(self._by_zmq(), self._by_grpc())
            async with asyncio.timeout(PATIENCE_S):
                while min(len(self.heard), len(self.seen)) < len(self.sent):
                    for each in sessions:
                        assert not each.done(), each.result()
                    await asyncio.sleep(0.1)
            for each in sessions:
                each.cancel()
            await asyncio.wait(sessions)
        except BaseException as error:
            self._error = error

    @property
    def _token(self) -> str:
        return sign(self._suite.directory / "jwt-keys" / "suite.key", USER)

    async def _page(self, opened: asyncio.Event) -> None:
        """Follow the user's events as the page does, over a WebSocket, from the moment at which it first opens."""
        address = f"http://{self._suite.reached('web')}/v1/events"
        cursor: dict[str, str] | None = None
        async with aiohttp.ClientSession() as http:
            while True:
                with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
                    async with http.ws_connect(address, heartbeat=5.0) as socket:
                        await socket.send_json({"authorize": {"token": self._token, "cursor": cursor}})
                        async for message in socket:
                            if message.type is not aiohttp.WSMsgType.TEXT:
                                break  # a heartbeat that a stopped gateway did not answer: connect again
                            ((kind, value),) = json.loads(message.data).items()
                            if kind == "error" and value["code"] == "UNAVAILABLE":
                                break  # the gateway is stopping
                            assert kind in ("opened", "event"), message.data
                            if kind == "opened":
                                cursor = cursor or value["cursor"]
                                opened.set()
                            else:
                                assert cursor is not None
                                cursor = {"epoch": cursor["epoch"], "sequence": value["sequence"]}
                                self.seen[value["event"]["eventId"]] += 1
                self.notes["page"] += 1
                await asyncio.sleep(0.2)

    async def _session(self) -> None:
        def handle(message: pb.WatchEventsResponse, cursor: pb.Cursor) -> bool:
            assert not message.HasField("reset"), message
            if message.HasField("event"):
                self.heard[message.event.event.event_id] += 1
            return True

        def note(text: str) -> None:
            self.notes[text] += 1

        address = self._suite.reached("events")
        await client.follow(address, lambda: self._token, None, handle, client_name="desk", receive=True, on_note=note)

    async def _by_zmq(self) -> None:
        fast, sure = (f"tcp://{self._suite.reached(port)}" for port in ("events_sub", "events_router"))
        outbox = self._suite.directory / "outbox.db"
        with Publisher(outbox=outbox, fast=fast, guaranteed=sure, on_outcome=self._ended) as publisher:
            for number in itertools.count():
                if self._stopping.is_set():
                    break
                self.sent.append(f"z{number}")
                publisher.submit_event(event(USER, self.sent[-1], CRITICAL, [given.WEB]))
                await asyncio.sleep(0.1)
            async with asyncio.timeout(PATIENCE_S):
                while sum(name.startswith("z") for name, _ in self.ends) < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    def _ended(self, outcome: Outcome) -> None:
        self.ends[outcome.event_id, outcome.status.name] += 1

    async def _by_grpc(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                break
            made = event(USER, f"g{number}", CRITICAL, [given.WEB])
            self.sent.append(made.event_id)
            async with asyncio.timeout(PATIENCE_S):
                status = await self._published(made)
            self.ends[made.event_id, status] += 1
            await asyncio.sleep(0.1)

    async def _published(self, made: given.UserEvent) -> str:
        """Return the last status of an event; a first call that finds nobody is made again."""
        while True:
            with suppress(GatewayUnreachable):
                async for ack in client.publish(self._suite.reached("events"), made):
                    last = ack
                return given.AckStatus.Name(last.status)
            await asyncio.sleep(0.2)
