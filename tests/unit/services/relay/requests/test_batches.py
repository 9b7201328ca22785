"""SubmitHistoricalBatch: an answer and an end for each request, what a repeated batch adds, and hostile callers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_relay.requests.context import Signals
from dexorder_relay.requests.queries import ENDS_IN_A_READ
from dexorder_relay.service.batches import COMMITTED_AT_ONCE
from dexorder_relay.store.database import Store
from tests.unit.services.relay.harness import NOT_FOUND, OK, TICKER, Suite, refused, request, suite
from tests.unit.services.relay.requests.test_submitter import hold_back as hold_back
from tests.unit.services.relay.requests.test_submitter import stored
from tests.unit.services.relay.test_access_rpc import callers_file, code_of, guarded
from tests.unit.services.relay.triggers.test_many_triggers import commits

QUEUED, DUPLICATE, INVALID, ERROR = (
    ingest.SubmitResponse.SubmitStatus.Value(name) for name in ("QUEUED", "DUPLICATE", "INVALID", "ERROR")
)
CODE = grpc.StatusCode


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[Signals]:
    """Return the wake-ups of each relay that is started."""
    made, init = list[Signals](), Signals.__init__

    def noted(one: Signals) -> None:
        made.append(one)
        init(one)

    monkeypatch.setattr(Signals, "__init__", noted)
    return made


@dataclass
class Batch:
    """An open call, and what it has received."""

    call: Any
    answers: list[pb.BatchAnswer] = field(default_factory=list)
    ended: list[pb.RequestRecord] = field(default_factory=list)
    progress: list[pb.RequestProgress] = field(default_factory=list)
    messages: int = 0

    async def read(self, *, answers: int = 0, ended: int = 0) -> Batch:
        """Read until it has so many; no more of either may come."""
        while len(self.answers) < answers or len(self.ended) < ended:
            await self._take()
        assert (len(self.answers), len(self.ended)) == (answers, ended)
        return self

    async def finish(self) -> Batch:
        """Read to the end of the stream."""
        while await self._take():
            pass
        return self

    async def _take(self) -> bool:
        message = await asyncio.wait_for(self.call.read(), 60)
        if message is grpc.aio.EOF:
            return False
        self.messages += 1
        self.answers += message.answers
        self.ended += message.ended
        self.progress += message.progress
        return True

    @property
    def statuses(self) -> list[int]:
        return [each.answer.status for each in self.answers]

    @property
    def ends(self) -> dict[str, int]:
        """Return the status of each end, by id, of which no id may stand twice."""
        found: dict[str, int] = {each.request.request_id: each.status for each in self.ended}
        assert len(found) == len(self.ended)
        return found


def batch(stub: Any, requests: Iterable[ingest.SubmitHistoricalRequest], *, with_progress: bool = False) -> Batch:
    message = pb.SubmitHistoricalBatchRequest(requests=requests, with_progress=with_progress)
    return Batch(stub.history.SubmitHistoricalBatch(message))


def minutes(names: Sequence[str]) -> list[ingest.SubmitHistoricalRequest]:
    """Return a request for a minute of its own for each name."""
    return [request(name, n, n + 1) for n, name in enumerate(names)]


async def cancel(s: Suite, request_id: str, stub: Any = None) -> None:
    await (stub or s.relay).history.CancelRequest(pb.CancelRequestRequest(request_id=request_id))


async def listed(s: Suite) -> int:
    return len((await s.relay.history.ListRequests(pb.ListRequestsRequest(page_size=1_000))).records)


async def test_each_request_has_its_answer_in_order_and_each_accepted_one_its_end(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.queued("known", 0, 5)
        ingestor = await s.offering(1)
        found = batch(
            s.relay,
            [
                request("known", 0, 5),
                request("a", 5, 10),
                request("wrong", 10, 10),
                request("known", 0, 6),
                request("a", 5, 10),
                request("a", 5, 11),
                request("set", 0, 5, dataset="nonsense"),
                request("", 0, 5),
                request("b", 0, 10),
            ],
        )
        await found.read(answers=9)
        assert found.statuses == [DUPLICATE, QUEUED, INVALID, INVALID, DUPLICATE, INVALID, INVALID, INVALID, QUEUED]
        texts = [each.answer.error_message for each in found.answers]
        assert "end_time" in texts[2] and "another request" in texts[3] and "another request" in texts[5]
        assert "nonsense" in texts[6] and "request_id" in texts[7]
        assert [bool(each.answer.notification_topic) for each in found.answers] == [not text for text in texts]
        await ingestor.work(s.pipeline, dispatches=2, holes=range(5, 10))
        await found.finish()
        assert found.ends == {"known": OK, "a": NOT_FOUND, "b": OK}
        assert {each.request.request_id: each.row_count for each in found.ended} == {"known": 5, "a": 0, "b": 5}
        assert await listed(s) == 3


async def test_a_batch_is_one_commit_for_each_fifty(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.queued("first", 0, 1)
        before = commits(tmp_path)
        found = batch(s.relay, [request(f"r{n}", n, n + 1) for n in range(2 * COMMITTED_AT_ONCE + 1)])
        await found.read(answers=2 * COMMITTED_AT_ONCE + 1)
        assert found.messages == 3 and commits(tmp_path) - before <= 5, "three, and a few of the relay itself"
        assert await listed(s) == 2 * COMMITTED_AT_ONCE + 2
        found.call.cancel()


async def test_no_request_of_a_batch_is_answered_before_it_is_on_disk(tmp_path: Path, hold_back: Any) -> None:
    async with suite(tmp_path) as s:
        await s.submit("before", 0, 10)  # what the relay writes at its start is on disk then
        reached, released = hold_back()
        found = batch(s.relay, minutes("ab"))
        answered = asyncio.ensure_future(found.read(answers=2))
        assert await asyncio.to_thread(reached.wait, 60)
        done, _ = await asyncio.wait({answered}, timeout=0.3)
        on_disk = stored(tmp_path, "requests")
        released.set()
        assert not done and on_disk == ["before"]
        await answered
        assert stored(tmp_path, "requests") == ["a", "b", "before"]


async def test_a_batch_that_is_repeated_doubles_nothing_and_brings_the_ends_again(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    async with suite(tmp_path) as s:
        lost = batch(s.relay, minutes(names))
        await lost.read(answers=3)
        lost.call.cancel()
        await cancel(s, "a")
        both = [batch(s.relay, minutes([*names, "d"])) for _ in range(2)]  # at the same time
        for each in both:
            await each.read(answers=4, ended=1)
        assert sorted(each.statuses for each in both) == [[DUPLICATE] * 3 + [QUEUED], [DUPLICATE] * 4]
        await cancel(s, "b")
        for each in both:
            await each.read(answers=4, ended=2)
            assert set(each.ends) == {"a", "b"}
        assert await listed(s) == 4
    async with suite(tmp_path) as s:  # a relay that was restarted
        again = batch(s.relay, minutes([*names, "d"]))
        await again.read(answers=4, ended=2)
        assert again.statuses == [DUPLICATE] * 4 and set(again.ends) == {"a", "b"}
        await cancel(s, "c")
        await cancel(s, "d")
        assert set((await again.finish()).ends) == {"a", "b", "c", "d"}
        assert await listed(s) == 4


async def test_a_stream_of_a_relay_that_stops_breaks_as_unavailable(tmp_path: Path, signals: list[Signals]) -> None:
    async with suite(tmp_path) as s:
        found = batch(s.relay, minutes("a"))
        await found.read(answers=1)
        signals[0].close()
        with refused(CODE.UNAVAILABLE):
            await found.finish()


async def test_progress_comes_if_it_is_wanted_and_never_after_the_end(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        silent, told = [
            batch(s.relay, [request("a", 0, 4), request("b", 4, 8)], with_progress=p) for p in (False, True)
        ]
        for each in (silent, told):
            await each.read(answers=2)
        ingestor = await s.offering(1)
        await ingestor.work(s.pipeline, dispatches=2)
        for each in (silent, told):
            await each.finish()
            assert each.ends == {"a": OK, "b": OK}
        assert not silent.progress
        first = {each.request_id: each for each in reversed(told.progress)}
        assert set(first) == {"a", "b"} and first["a"].progress.expected_periods == 4
        assert all(each.state != pb.REQUEST_STATE_FINISHED for each in told.progress)


async def test_a_batch_has_a_limit_and_bad_ids_cost_their_own_answers(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for size in (0, 1_001):
            code, text = await code_of(batch(s.relay, minutes([f"r{n}" for n in range(size)])).call)
            assert code is CODE.INVALID_ARGUMENT and "requests" in text, text
        huge = [request("x" * 3_000, 0, 1), request("y\n", 0, 1), request("ok", 0, 1, client_id="z" * 3_000)]
        found = batch(s.relay, [*huge, request("good", 0, 1)])
        await found.read(answers=4)
        assert found.statuses == [INVALID, INVALID, INVALID, QUEUED]
        assert all(len(each.answer.error_message) < 200 for each in found.answers)
        code, _ = await code_of(batch(s.relay, [request("x" * 10_000, 0, 1)] * 500).call)
        assert code is CODE.RESOURCE_EXHAUSTED, "5 MB"
        assert await listed(s) == 1


async def test_quotas_count_each_request_when_it_is_taken(tmp_path: Path) -> None:
    tokens = callers_file(
        tmp_path / "callers.yaml",
        desk={"unfinished_requests": 2, "open_streams": 2},
        other={"submissions_per_minute": 3},
        boss={"open_streams": 2},
    )
    async with guarded(tmp_path, tokens=tokens) as s:
        desk, other, boss = [await s.stub(name) for name in ("desk", "other", "boss")]
        found = batch(desk, [*minutes("ab"), request("a", 0, 1), request("c", 0, 1), request("bad", 1, 1)])
        await found.read(answers=5)
        assert found.statuses == [QUEUED, QUEUED, DUPLICATE, ERROR, INVALID]
        assert [each.over_quota for each in found.answers] == [False, False, False, True, False]
        assert "unfinished_requests would be 3, 2 are allowed" in found.answers[3].answer.error_message
        assert not found.answers[3].HasField("retry_after_ms"), "it has room when another request has ended"
        await cancel(s, "a", desk)
        later = batch(desk, [request("c", 0, 1)])
        await later.read(answers=1)
        assert later.statuses == [QUEUED]
        code, text = await code_of(batch(desk, minutes("b")).call)
        assert code is CODE.RESOURCE_EXHAUSTED and "open_streams would be 3" in text

        taken = batch(other, [request("a", 0, 1), *(request(f"o{n}", n, n + 1) for n in range(4))])
        await taken.read(answers=5)
        assert taken.statuses == [INVALID, QUEUED, QUEUED, ERROR, ERROR], "another client's id, then a minute's worth"
        assert 0 < taken.answers[3].retry_after_ms <= 60_000 and taken.answers[3].over_quota

        many = minutes([f"m{n}" for n in range(201)])
        code, text = await code_of(batch(boss, many).call)
        assert code is CODE.RESOURCE_EXHAUSTED and "open_streams would be 3" in text, "as three streams"
        assert await listed_by(boss) == {"a", "b", "c", "o0", "o1"}


async def listed_by(stub: Any) -> set[str]:
    records = (await stub.history.ListRequests(pb.ListRequestsRequest(page_size=1_000))).records
    return {each.request.request_id for each in records}


async def test_a_caller_that_reads_nothing_holds_up_no_other_and_keeps_no_more_than_ids(
    tmp_path: Path, signals: list[Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    count, read, records = 4 * ENDS_IN_A_READ, list[int](), Store.records

    async def counted(store: Store, request_ids: Iterable[str]) -> Any:
        read.append(len(wanted := list(request_ids)))
        return await records(store, wanted)

    monkeypatch.setattr(Store, "records", counted)
    async with suite(tmp_path) as s:
        names = [f"{n:03}{'x' * 250}" for n in range(count)]
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]
        async with grpc.aio.insecure_channel(s.running.address, options=options) as channel:
            deaf = batch(RelayStubs(channel), minutes(names), with_progress=True)
            await deaf.read(answers=count)
            for name in names:
                await cancel(s, name)
            assert await s.ended(names[-1]) == (ingest.HistoryReadyNotification.ERROR, 0)
            listeners = signals[0]._listeners
            assert 0 < len(listeners) <= count, "a key for each request, whatever has happened to it"
            deaf.call.cancel()
            async with asyncio.timeout(60):
                while listeners:  # noqa: ASYNC110 - the relay notices the end of a call when it does
                    await asyncio.sleep(0.05)
        again = batch(s.relay, minutes(names))
        assert len((await again.finish()).ends) == count
        assert sum(read) >= count and max(read) <= ENDS_IN_A_READ, "records of all of them are read in parts"
        assert (await s.submit("next", 0, 1)).status == QUEUED


async def test_a_request_that_is_forgotten_before_it_is_read_ends_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with suite(tmp_path) as s:
        found = batch(s.relay, minutes("a"))
        await found.read(answers=1)

        async def none(*_: object) -> list[Any]:
            return []

        monkeypatch.setattr(Store, "records", none)
        await cancel(s, "a")
        with refused(CODE.NOT_FOUND, "request_id 'a' is not known"):
            await found.finish()


async def test_ends_of_one_snapshot_share_a_message(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        found = batch(s.relay, [request(f"r{n}", 0, 10) for n in range(50)])
        await found.read(answers=50)
        ingestor = await s.offering(1)
        (job,) = await ingestor.work(s.pipeline, dispatches=1)
        await found.finish()
        assert job.ticker == TICKER and set(found.ends.values()) == {OK} and len(found.ends) == 50
        assert found.messages <= 25, "one for the answers; a few, as ends come one after the other"
