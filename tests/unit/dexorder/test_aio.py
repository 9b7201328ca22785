from datetime import UTC, datetime

import pytest

from dexorder import AsyncClient, Client, aio, errors
from dexorder.records import Progress, State
from tests.fakes.candle_table import HOURS, SPAN, START, TICKER, Warehouse
from tests.fakes.relay_server import FakeRelay, Notify, ended

ASKED = (TICKER, "1h", "2024-01-01", "2024-01-02T06:00")


async def test_history_returns_the_rows_in_time_order(fake: FakeRelay) -> None:
    seen: list[Progress] = []
    async with AsyncClient(fake.address) as client:
        rows = await client.history(*ASKED, on_progress=seen.append, request_id="one", client_id="me")
    assert rows.num_rows == HOURS
    assert rows["open"].to_pylist() == [100.0 + i for i in range(HOURS)]
    assert set(rows["ticker"].to_pylist()) == {TICKER}
    assert rows["open_time"][0].as_py() == datetime(2024, 1, 1, tzinfo=UTC)
    (sent,) = fake.submitted
    assert (sent.request_id, sent.client_id, sent.start_time, sent.end_time, sent.period_seconds) == (
        "one", "me", SPAN.start_ns, SPAN.end_ns, 3600,
    )  # fmt: skip
    assert seen and seen[0].state is State.RUNNING


def test_the_sync_client_does_the_same_and_closes_twice(fake: FakeRelay) -> None:
    client = Client()  # from DEXORDER_RELAY
    assert client.history(*ASKED).num_rows == HOURS
    assert [r.ticker for r in client.list_requests(most=5)] == [TICKER]
    client.close()
    client.close()


async def test_rows_are_read_at_the_announced_snapshot(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, rows=HOURS - 1, snapshot=warehouse.first_snapshot)
    async with AsyncClient(fake.address) as client:
        rows = await client.history(*ASKED)
    assert rows["open"][0].as_py() == 101.0


async def test_limit_takes_the_first_candles(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, rows=4, snapshot=warehouse.last_snapshot)
    async with AsyncClient(fake.address) as client:
        rows = await client.history(*ASKED, limit=4)
    assert rows["open"].to_pylist() == [100.0, 101.0, 102.0, 103.0]


async def test_fewer_rows_than_announced_is_an_error(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, rows=HOURS, snapshot=warehouse.first_snapshot)
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.HistoryMismatch, match=r"holds 29 rows .* announced were 30"):
            await client.history(*ASKED)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Notify.NOT_FOUND, errors.HistoryNotFound),
        (Notify.ERROR, errors.HistoryFailed),
        (Notify.TIMEOUT, errors.HistoryTimedOut),
    ],
)
async def test_other_ends_raise_with_the_record(fake: FakeRelay, status: int, error: type[errors.HistoryError]) -> None:
    missing = [{"start_time": START, "end_time": START + 3_600_000_000_000}]
    fake.ends = ended(status, error_message="the exchange refused", missing=missing)
    async with AsyncClient(fake.address) as client:
        with pytest.raises(
            error, match=r"the exchange refused; missing \[2024-01-01T00:00:00Z, 2024-01-01T01"
        ) as caught:
            await client.history(*ASKED)
    assert caught.value.record.missing[0].start_ns == START


async def test_a_relay_that_comes_back_is_waited_for(fake: FakeRelay) -> None:
    fake.unavailable, fake.break_streams = 3, 2
    said: list[str] = []
    async with AsyncClient(fake.address, on_retry=said.append) as client:
        assert (await client.history(*ASKED)).num_rows == HOURS
    assert said and fake.unavailable == fake.break_streams == 0
    assert len(fake.submitted) == 1


async def test_no_relay_at_all_is_one_sentence() -> None:
    async with AsyncClient("127.0.0.1:1", patience_seconds=0.5) as client:
        with pytest.raises(errors.RelayUnreachable, match=r"127\.0\.0\.1:1 does not answer"):
            await client.history(*ASKED)


async def test_a_notification_that_stays_out_is_replaced_by_the_record(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "GRACE_SECONDS", 0.05)
    fake.silent = True
    async with AsyncClient(fake.address) as client:
        assert (await client.history(*ASKED)).num_rows == HOURS


async def test_own_timeout_leaves_the_request_running(fake: FakeRelay) -> None:
    fake.stuck = True
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.WaitEnded, match="request two has not ended within"):
            await client.history(*ASKED, request_id="two", timeout=0.2)
    assert fake.submitted and not fake.cancelled


async def test_refusals_carry_the_relays_sentence(fake: FakeRelay) -> None:
    fake.refuse = "ticker 'X/Y.SIM': no such symbol"
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.RequestRefused, match=r"INVALID: ticker 'X/Y\.SIM'"):
            await client.history(*ASKED)
        with pytest.raises(errors.RequestUnknown, match="'nobody' is unknown"):
            await client.get_request("nobody")


async def test_environment_wins_over_the_announced_catalog(fake: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    good = fake.properties["uri"]
    fake.properties = {**fake.properties, "uri": "sqlite:////nowhere/catalog.db"}
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.CatalogError, match="DEXORDER_CATALOG_URI"):
            await client.history(*ASKED)
        monkeypatch.setenv("DEXORDER_CATALOG_URI", good)
        assert (await client.history(*ASKED)).num_rows == HOURS


async def test_listing_follows_the_pages(fake: FakeRelay) -> None:
    async with AsyncClient(fake.address) as client:
        for i in range(5):
            await client.history(*ASKED, request_id=f"r{i}")
        assert [r.request_id for r in await client.list_requests(most=3)] == ["r4", "r3", "r2"]
        assert len(await client.list_requests()) == 5
