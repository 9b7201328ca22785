import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from dexorder import AsyncClient, Client, errors
from dexorder.client import connection, requests
from dexorder.client.inputs import make_request
from dexorder.errors import DexorderError, RequestRefused
from dexorder.rows import catalog as catalog_rows
from dexorder.rows.table import Rows
from dexorder_common.model.history import Progress, RequestState
from dexorder_common.model.instrument import InstrumentKind, InstrumentList, ListedInstrument
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.fakes.candle_table import HOURS, SPAN, START, TICKER, Warehouse, candles, make_warehouse
from tests.fakes.relay_server import FakeRelay, Notify, ended, serving

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
        "one",
        "me",
        SPAN.start_ns,
        SPAN.end_ns,
        3600,
    )
    assert seen[-1].state is RequestState.FINISHED


def test_blocking_client_returns_the_same_and_may_be_closed_twice(fake: FakeRelay) -> None:
    client = Client()  # from DEXORDER_RELAY
    assert client.history(*ASKED).num_rows == HOURS
    assert [r.ticker for r in client.list_requests(limit=5)] == [TICKER]
    assert repr(client) == f"Client('{fake.address}')"
    client.close()
    client.close()
    assert repr(client) == f"Client('{fake.address}', closed)"
    with pytest.raises(DexorderError, match="the client is closed"):
        client.list_requests()
    with pytest.raises(DexorderError, match="the client is closed"):
        next(client.notifications("HISTORY_READY:x"))


def test_period_of_another_type_is_refused_with_words(fake: FakeRelay) -> None:
    with Client() as client, pytest.raises(RequestRefused, match=r"period datetime.timedelta.* is not one of 1s, 1m"):
        client.history(TICKER, timedelta(hours=1), "2024-01-01")  # type: ignore[arg-type]


async def test_rows_are_read_at_the_announced_snapshot(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, rows=HOURS - 1, snapshot=warehouse.first_snapshot)
    async with AsyncClient(fake.address) as client:
        rows = await client.history(*ASKED)
    assert rows["open"][0].as_py() == 101.0


async def test_limit_returns_the_first_candles(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, rows=4, snapshot=warehouse.last_snapshot)
    async with AsyncClient(fake.address) as client:
        rows = await client.history(*ASKED, limit=4)
    assert rows["open"].to_pylist() == [100.0, 101.0, 102.0, 103.0]


async def test_fewer_rows_than_announced_raise_history_mismatch(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, rows=HOURS, snapshot=warehouse.first_snapshot)
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.HistoryMismatch, match=r"has 29 rows .* but 30 were announced"):
            await client.history(*ASKED)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Notify.NOT_FOUND, errors.HistoryNotFound),
        (Notify.ERROR, errors.HistoryFailed),
        (Notify.TIMEOUT, errors.HistoryTimedOut),
    ],
)
async def test_status_other_than_ok_raises_with_the_record(
    fake: FakeRelay, status: int, error: type[errors.HistoryError]
) -> None:
    missing = [{"start_ns": START, "end_ns": START + 3_600_000_000_000}]
    fake.ends = ended(status, error_message="the exchange refused", missing=missing)
    async with AsyncClient(fake.address) as client:
        with pytest.raises(
            error, match=r"the exchange refused; missing \[2024-01-01T00:00:00Z, 2024-01-01T01"
        ) as caught:
            await client.history(*ASKED)
    assert caught.value.record.missing[0].start_ns == START


async def test_calls_are_retried_until_the_relay_is_back(fake: FakeRelay) -> None:
    fake.unavailable = 3
    fake.break_streams = 2
    said: list[str] = []
    async with AsyncClient(fake.address, on_note=said.append) as client:
        assert (await client.history(*ASKED)).num_rows == HOURS
    assert said and fake.unavailable == fake.break_streams == 0
    assert len(fake.submitted) == 1


async def test_stream_over_the_quota_is_retried(fake: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OVERLOADED_SECONDS", 0.01)
    fake.crowded = 5
    async with AsyncClient(fake.address) as client:
        assert (await client.history(*ASKED)).num_rows == HOURS
    assert not fake.crowded


async def test_missing_notification_is_replaced_by_the_record(fake: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "GRACE_SECONDS", 0.05)
    fake.silent = True
    async with AsyncClient(fake.address) as client:
        assert (await client.history(*ASKED)).num_rows == HOURS


async def test_token_is_sent_and_a_missing_token_is_one_sentence(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.token = "sesame"
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.NotAllowed, match="who are you; DEXORDER_TOKEN or"):
            await client.history(*ASKED)
    monkeypatch.setenv("DEXORDER_TOKEN", "sesame")
    with Client(fake.address) as client_:
        assert client_.history(*ASKED).num_rows == HOURS
    monkeypatch.setenv("DEXORDER_CHANNEL_TLS_CA", "/nowhere/ca.pem")
    with pytest.raises(errors.DexorderError, match=r"can't connect to .*/nowhere/ca\.pem"):
        Client(fake.address)


async def test_timeout_of_the_caller_leaves_the_request_running(fake: FakeRelay) -> None:
    fake.stuck = True
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.WaitEnded, match="request two did not end within"):
            await client.history(*ASKED, request_id="two", timeout=0.2)
    assert fake.submitted and not fake.cancelled


async def test_refusal_has_the_reason_of_the_relay(fake: FakeRelay) -> None:
    fake.refuse = "ticker 'X/Y.SIM': no such symbol"
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.RequestRefused, match=r"INVALID: ticker 'X/Y\.SIM'"):
            await client.history(*ASKED)
        with pytest.raises(errors.RequestUnknown, match="'nobody' is unknown"):
            await client.get_request("nobody")


async def test_a_wait_without_progress_asks_for_none_and_needs_no_notification(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "GRACE_SECONDS", 0.01)
    async with AsyncClient(fake.address) as client:
        for number, fake.silent in enumerate([False, True]):
            request = make_request(f"r{number}", *ASKED)
            await client.submit(request)
            found = await client.wait(request.request_id)
            assert (found.record.row_count, found.notification.outcome.row_count) == (HOURS, HOURS)
        assert not fake.watched
        with pytest.raises(errors.RequestUnknown, match="'nobody' is unknown"):
            await client.wait("nobody")


async def test_environment_overrides_the_announced_catalog(fake: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    good = fake.properties["uri"]
    fake.properties = {**fake.properties, "uri": "sqlite:////nowhere/catalog.db"}
    async with AsyncClient(fake.address) as client:
        with pytest.raises(errors.NotSupported, match="does not have this call"):  # as this fake
            await client.history(*ASKED)
        monkeypatch.setenv("DEXORDER_CATALOG_URI", "sqlite:////nowhere/catalog.db")
        with pytest.raises(errors.CatalogError, match="DEXORDER_CATALOG_URI"):
            await client.history(*ASKED)
        monkeypatch.setenv("DEXORDER_CATALOG_URI", good)
        assert (await client.history(*ASKED)).num_rows == HOURS


async def test_unreadable_catalog_or_table_is_one_sentence(fake: FakeRelay, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("no database")
    broken = dict(fake.properties, uri=f"sqlite:///{tmp_path}/catalog.db")
    async with AsyncClient(fake.address, ("dexorder", broken)) as client:
        with pytest.raises(errors.CatalogError, match=r"catalog dexorder can't be opened: .*not a database"):
            await client.history(*ASKED)


async def test_files_deleted_while_they_are_read(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    relay = FakeRelay(warehouse.properties, ended(Notify.OK, rows=HOURS, snapshot=warehouse.last_snapshot))
    for file in (tmp_path / "trading").rglob("*.parquet"):
        file.unlink()
    with serving(relay):
        async with AsyncClient(relay.address) as client:
            with pytest.raises(errors.CatalogError, match=r"a file of trading.ohlc is gone: .*parquet.*; read again"):
                await client.history(*ASKED)
            done = await client.wait(relay.submitted[0].request_id)
            with pytest.raises(errors.CatalogError, match="is gone"):
                await anext(client.read_batches(done))


async def test_duplicates_at_the_current_snapshot_are_not_read_instead_of_an_expired_one(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    catalog = load_catalog("dexorder", **warehouse.properties)
    catalog.load_table("trading.ohlc").append(candles(TICKER, 7, 1))
    relay = FakeRelay(warehouse.properties, ended(Notify.OK, rows=HOURS + 1, snapshot=4711))
    with serving(relay):
        async with AsyncClient(relay.address) as client:
            with pytest.raises(errors.HistoryMismatch, match=r"has 31 rows, 1 of them duplicates, at snapshot"):
                await client.history(*ASKED)
            done = await client.wait(relay.submitted[0].request_id)
            with pytest.raises(errors.HistoryMismatch, match="1 of them duplicates"):
                await anext(client.read_batches(done))
    catalog.close()


def list_files(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


@pytest.mark.parametrize(
    ("files", "damage", "text"),
    [
        (
            "*.metadata.json",
            Path.unlink,
            r"trading\.ohlc in catalog dexorder can't be read from here: .*metadata\.json",
        ),
        (
            "*.parquet",
            lambda file: file.write_bytes(b"PAR1 torn"),
            r"the files of trading\.ohlc can't be read from here: ",
        ),
    ],
)
async def test_an_unreadable_table_is_named_with_its_cause(tmp_path: Path, files: str, damage: Any, text: str) -> None:
    warehouse = make_warehouse(tmp_path)
    relay = FakeRelay(warehouse.properties, ended(Notify.OK, rows=HOURS, snapshot=warehouse.last_snapshot))
    for file in list_files(tmp_path, files):
        damage(file)
    with serving(relay):
        async with AsyncClient(relay.address) as client:
            with pytest.raises(errors.CatalogError, match=text):
                await client.history(*ASKED)


async def test_list_requests_reads_all_pages(fake: FakeRelay) -> None:
    async with AsyncClient(fake.address) as client:
        for i in range(5):
            await client.history(*ASKED, request_id=f"r{i}")
        assert [r.request_id for r in await client.list_requests(limit=3)] == ["r4", "r3", "r2"]
        assert len(await client.list_requests()) == 5


async def test_expired_snapshot_is_replaced_by_the_current_one_if_it_has_as_many_rows(fake: FakeRelay) -> None:
    fake.ends = ended(Notify.OK, rows=HOURS, snapshot=4711)
    said: list[str] = []
    async with AsyncClient(fake.address, on_note=said.append) as client:
        assert (await client.history(*ASKED)).num_rows == HOURS
        assert len(said) == 1 and "snapshot 4711 of trading.ohlc has expired; snapshot" in said[0]
        fake.ends = ended(Notify.OK, rows=HOURS + 1, snapshot=4711)
        with pytest.raises(errors.HistoryMismatch, match=r"but 31 were announced; the announced snapshot has expired"):
            await client.history(*ASKED, request_id="more")
    assert len(said) == 1


@pytest.mark.parametrize("limit", [None, 17])
async def test_batches_together_are_the_rows(
    fake: FakeRelay, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr(catalog_rows, "PIECE_PERIODS", 4)
    fake.ends = ended(Notify.OK, rows=limit or HOURS, snapshot=warehouse.last_snapshot)
    async with AsyncClient(fake.address) as client:
        request = make_request("one", *ASKED, limit=limit)
        await client.submit(request)
        done = await client.wait("one")
        batches = [batch async for batch in client.read_batches(done)]
        whole = await client.read(done)
    with Client(fake.address) as client_:
        again = list(client_.read_batches(done))
    assert Rows.concat(batches) == whole == Rows.concat(again)
    assert max(batch.num_rows for batch in batches) == 4


async def test_rows_are_counted_before_the_first_batch(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, rows=HOURS, snapshot=warehouse.first_snapshot)
    async with AsyncClient(fake.address) as client:
        await client.submit(make_request("one", *ASKED))
        done = await client.wait("one")
        with pytest.raises(errors.HistoryMismatch, match=r"has 29 rows"):
            await anext(client.read_batches(done))


async def test_no_rows_are_one_empty_batch(fake: FakeRelay, warehouse: Warehouse) -> None:
    fake.ends = ended(Notify.OK, snapshot=warehouse.last_snapshot)
    async with AsyncClient(fake.address) as client:
        await client.submit(make_request("one", TICKER, "1h", "2020-01-01", "2020-01-02"))
        (batch,) = [batch async for batch in client.read_batches(await client.wait("one"))]
    assert batch.num_rows == 0 and "open_time" in batch.schema.names


async def test_markets_are_listed_and_an_unknown_venue_is_one_sentence(fake: FakeRelay) -> None:
    one = pb.Instrument(ticker=TICKER, active=True, kind=pb.INSTRUMENT_KIND_SPOT, base="BTC", quote="USDT")
    fake.markets["SIM"] = pb.ListInstrumentsResponse(instruments=[one], fetched_ns=START)
    async with AsyncClient(fake.address) as client:
        found = await client.markets("SIM")
        listed = ListedInstrument(TICKER, True, InstrumentKind.SPOT, "BTC", "USDT")
        assert found == InstrumentList("SIM", (listed,), START)
        with pytest.raises(errors.VenueUnknown, match=r"venue 'MOON' is unknown: no ingestor has reported"):
            await client.markets("MOON")


async def test_a_list_of_markets_of_several_pages_arrives_whole(fake: FakeRelay) -> None:
    tickers = [f"C{number:04}/USDT.SIM" for number in range(2_100)]
    listed = [pb.Instrument(ticker=each, active=True) for each in tickers]
    fake.markets["SIM"] = pb.ListInstrumentsResponse(instruments=listed, fetched_ns=START)
    async with AsyncClient(fake.address) as client:
        found = await client.markets("SIM")
    assert found == InstrumentList("SIM", tuple(ListedInstrument(each, True) for each in tickers), START)


async def test_list_requests_filters_by_client_and_state(fake: FakeRelay) -> None:
    async with AsyncClient(fake.address) as client:
        for name, who in (("one", "a"), ("two", "b"), ("three", "a")):
            await client.submit(make_request(name, *ASKED, client_id=who))
        assert [r.request_id for r in await client.list_requests("a")] == ["three", "one"]
        assert await client.list_requests(state=RequestState.RUNNING) == []
        assert len(await client.list_requests(state=RequestState.FINISHED)) == 3


def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> dict[str, list[inspect.Parameter]]:
        found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        found = {name: member for name, member in found.items() if callable(member)}
        return {name: list(inspect.signature(member).parameters.values()) for name, member in found.items()}

    def made(kind: type) -> list[inspect.Parameter]:
        return list(inspect.signature(kind).parameters.values())

    assert public(AsyncClient) == public(Client)
    assert made(AsyncClient) == made(Client)
    assert {"history", "read_batches", "markets"} <= set(public(Client))
