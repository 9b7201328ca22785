"""Many records in one call: their order, refused ones, a full queue, silence, and who else runs beside it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from dexorder_common.kafka.client_errors import RecordRefused
from dexorder_common.model.errors import Exhausted, InvalidRequest, Unavailable, Uncertain
from dexorder_common.rpc.field_rules import check_request
from dexorder_gateway.kafkapixy.bulk import MAX_RECORDS, Record, write_many
from dexorder_gateway.keys.ledger import Placing
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2 as pb


class Queue:
    """Producer with room for some records, which Kafka takes one by one, in the next turn of the loop."""

    def __init__(self, room: int = 1_000, refuse: str = "", late: str = "", stuck: bool = False) -> None:
        self.room, self.refuse, self.late, self.stuck = room, refuse, late, stuck
        self.written: list[str] = []
        self._waiting: deque[tuple[str, Placing]] = deque()

    def begin(self, topic: str, key: bytes | None, value: bytes, headers: Any) -> Placing:
        if len(self._waiting) >= self.room:
            raise Exhausted("the queue is full")
        text = value.decode()
        if text == self.refuse:
            raise RecordRefused(f"{text} is too large")
        loop = asyncio.get_running_loop()
        self._waiting.append((text, placing := loop.create_future()))
        if not self.stuck:
            loop.call_soon(self._take)
        return placing

    def _take(self) -> None:
        text, placing = self._waiting.popleft()
        if text == self.late:
            placing.set_exception(RecordRefused(f"{text} is refused by the broker"))
        else:
            self.written.append(text)
            placing.set_result((0, len(self.written)))


def write(queue: Queue, count: int, seconds: float = 5.0) -> dict[int, str]:
    records = [Record(b"k", str(n).encode(), []) for n in range(count)]
    return asyncio.run(write_many(queue, "t", records, seconds))  # type: ignore[arg-type]


def test_records_keep_their_order_and_refused_ones_are_named() -> None:
    queue = Queue(refuse="3", late="5")
    assert write(queue, 8) == {3: "3 is too large", 5: "5 is refused by the broker"}
    assert queue.written == ["0", "1", "2", "4", "6", "7"]


def test_a_call_that_fills_the_queue_waits_for_its_own_records() -> None:
    queue = Queue(room=3)
    assert write(queue, 50) == {}
    assert queue.written == [str(n) for n in range(50)]


@pytest.mark.parametrize(("room", "error"), [(0, Exhausted), (2, Uncertain)])
def test_a_queue_that_stays_full_is_an_error_that_says_what_may_have_changed(room: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        write(Queue(room=room, stuck=True), 5, seconds=0.01)


def test_records_that_kafka_does_not_acknowledge_are_uncertain() -> None:
    with pytest.raises(Uncertain, match="2 of 2 records of topic 't'"):
        write(Queue(stuck=True), 2, seconds=0.01)


def test_a_failure_of_one_record_is_that_of_the_call() -> None:
    class Failing(Queue):
        def _take(self) -> None:
            self._waiting.popleft()[1].set_exception(Unavailable("no broker"))

    with pytest.raises(Unavailable, match="no broker"):
        write(Failing(), 3)


def test_a_call_with_too_many_records_is_refused_and_large_ones_let_others_run() -> None:
    pb_records = [pb.NewRecord(value=b"x")] * (MAX_RECORDS + 1)
    check_request(pb.ProduceManyRequest(topic="t", records=pb_records[:-1]))
    with pytest.raises(InvalidRequest, match="records"):
        check_request(pb.ProduceManyRequest(topic="t", records=pb_records))

    async def turns() -> int:
        found = 0

        async def other() -> None:
            nonlocal found
            while True:
                found += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        records = [Record(b"", b"x", [])] * MAX_RECORDS
        await write_many(Queue(), "t", records, 5.0)  # type: ignore[arg-type]
        task.cancel()
        return found

    assert asyncio.run(turns()) >= MAX_RECORDS // 100
