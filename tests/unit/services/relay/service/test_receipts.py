"""Receipts: the real relay and client on a real table; each planted change is found, and what only looks new is not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from typer.testing import CliRunner

from dexorder import AsyncClient
from dexorder.cli.app import app
from dexorder.client import table_rows
from dexorder.errors import ExportFailed, ReceiptFailed, RequestRefused, RequestUnknown
from dexorder.receipts.receipt import Receipt
from dexorder_common.lake import receipts as kept_receipts
from dexorder_common.lake.commit import commit_updates
from dexorder_common.lake.receipts import receipts_in
from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.proof import Proof, ProofKind, encode_proofs
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb
from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance.procedures import snapshot_states
from dexorder_spark.maintenance.snapshots import ExpireSnapshots, plan_expiry
from tests.paths import ROOT
from tests.series_messages import series
from tests.unit.services.relay.harness import (
    SERIES,
    START_NS,
    TICKER,
    Suite,
    at,
    candle,
    catalog_settings,
    coverage_row,
    make_tables,
    refused,
    span,
    suite,
    write_coverage,
)
from tests.unit.services.relay.test_access_rpc import callers_file, guarded

CODE = grpc.StatusCode
HOLES = ((10, 12), (1_500, 1_501))
LAST = 2_000
MINUTES = [m for m in range(LAST) if not any(first <= m < end for first, end in HOLES)]
PROOF = Proof(span(0, LAST), ProofKind.ODDS, 3, at(LAST + 100), at(LAST + 105))
DAY_NS = 86_400 * 10**9


@asynccontextmanager
async def covered(folder: Path) -> AsyncIterator[tuple[Suite, AsyncClient]]:
    """Run a relay whose table has 2,000 minutes with two holes; give a client as well."""
    catalog = catalog_settings(folder).load()
    make_tables(catalog)
    row = coverage_row(0, LAST, fetched_ns=at(LAST + 200), empty=HOLES)
    object.__setattr__(row, "evidence", encode_proofs([PROOF]))
    write_coverage(catalog, row)
    catalog.close()
    async with suite(folder) as s, AsyncClient(s.running.address) as client:
        s.pipeline.write(MINUTES)
        yield s, client


async def made(client: AsyncClient) -> Receipt:
    return await client.receipts.make(TICKER, "1m", START_NS, at(LAST))


def data_files(s: Suite) -> list[Path]:
    table = s.pipeline.catalog.load_table(OHLC.name)
    return [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]


def rewrite(s: Suite, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of the snapshot's only file in place."""
    (path,) = data_files(s)
    pq.write_table(change(pq.read_table(path)), path)


def one_value(rows: pa.Table) -> pa.Table:
    """Return the rows with the smallest possible change of one double."""
    closes = rows["close"].to_numpy().copy()
    closes[700] = closes[700] + 2**-42
    return rows.set_column(rows.column_names.index("close"), rows.schema.field("close"), pa.array(closes))


def one_row_less(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 700), rows.slice(701)])


def a_row_in_a_hole(rows: pa.Table) -> pa.Table:
    """Return the rows with one more, in the second hole."""
    like = rows.slice(len(rows) - 1, 1)
    field = rows.schema.field("open_time")
    moment = pa.array([at(1_500) // 1_000], pa.int64()).cast(field.type)
    return pa.concat_tables([rows, like.set_column(rows.column_names.index("open_time"), field, moment)])


def a_null_for_a_zero(rows: pa.Table) -> pa.Table:
    """Return the rows with a null in place of a number."""
    trades = rows["trades"].to_pylist()
    trades[0] = None
    return rows.set_column(rows.column_names.index("trades"), rows.schema.field("trades"), pa.array(trades, pa.int64()))


async def test_a_receipt_names_rows_holes_and_proofs_and_duckdb_has_the_same_hash(tmp_path: Path) -> None:
    async with covered(tmp_path) as (s, client):
        receipt = await made(client)
        assert receipt.rows.count == len(MINUTES) and list(receipt.rows.days) == ["2024-01-01", "2024-01-02"]
        assert [each.span for each in receipt.holes] == [span(*hole) for hole in HOLES]
        (proof,) = receipt.holes[0].proofs
        assert (proof["kind"], proof["answers"], proof["provisional"]) == ("odds", 3, True)
        assert [of for _, of in receipt.provisional] == ["hole", "hole"], "its proofs were asked within five minutes"
        assert Receipt.parse(str(receipt)) == receipt
        assert repr(receipt) == f"Receipt {receipt.receipt_id}: {receipt.summary}"

        table = s.pipeline.catalog.load_table(OHLC.name)
        scan = table.scan(row_filter=rows_in(SERIES, receipt.span), snapshot_id=receipt.snapshot_id)
        (recipe,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "receipts.md").read_text(), re.S)
        with scan.to_duckdb("ohlc") as database:
            assert database.execute(recipe).fetchall() == [(receipt.rows.sha256,)]
        assert (await client.receipts.verify(receipt)).well


@pytest.mark.parametrize("change", [one_value, one_row_less, a_row_in_a_hole, a_null_for_a_zero])
async def test_a_planted_change_of_the_files_is_found(tmp_path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    async with covered(tmp_path) as (s, client):
        receipt = await made(client)
        rewrite(s, lambda rows: rows)
        assert (await client.receipts.verify(receipt)).well, "a file that says the same is no fault"
        rewrite(s, change)
        check = await client.receipts.verify(receipt)
        assert not check.well and any("rows differ on 2024-01-0" in fault for fault in check.faults), check
        assert any("holes differ" in fault for fault in check.faults) == (change in (one_row_less, a_row_in_a_hole))


async def test_a_planted_change_of_the_document_is_found_also_by_who_hashes_it_again(tmp_path: Path) -> None:
    async with covered(tmp_path) as (_, client):
        receipt = await made(client)

        def without_a_hole(document: dict[str, Any]) -> None:
            del document["holes"][1]

        def other_proof(document: dict[str, Any]) -> None:
            document["holes"][0]["proofs"][0]["answers"] = 4

        def final(document: dict[str, Any]) -> None:
            document["provisional"].clear()

        for change in (without_a_hole, other_proof, final):
            document = receipt.as_json()
            change(document := json.loads(json.dumps(document)))
            with pytest.raises(ReceiptFailed, match="was changed after it was made"):
                Receipt.parse(json.dumps(document))
            forged = dataclasses.replace(
                receipt,
                holes=receipt.holes[:1] if change is without_a_hole else receipt.holes,
                provisional=() if change is final else receipt.provisional,
            )
            if change is other_proof:
                proofs = ({**receipt.holes[0].proofs[0], "answers": 4},)
                forged = dataclasses.replace(
                    forged, holes=(dataclasses.replace(receipt.holes[0], proofs=proofs), receipt.holes[1])
                )
            check = await client.receipts.verify(Receipt.parse(str(forged)))
            assert not check.well and "another hash" in check.faults[0]
    with pytest.raises(RequestRefused, match="not a receipt"):
        Receipt.parse("{}")


async def test_new_files_keep_the_hash_and_expiry_keeps_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with covered(tmp_path) as (s, client):
        receipt = await made(client)
        catalog = s.pipeline.catalog
        for size in (900, 300):  # the same rows in other files and another order, twice
            table = catalog.load_table(OHLC.name)
            rows = table.scan().to_arrow().cast(OHLC.arrow).sort_by([("close", "descending")])
            replace_rows(table, rows_in(SERIES, span(0, LAST)), rows.slice(0, size), {})
            table = catalog.load_table(OHLC.name)
            table.append(rows.slice(size))
        check = await client.receipts.verify(receipt)
        assert check.well and not check.changed_days

        s.pipeline.upsert([5], close=1.0)  # a correction: the receipt is still good, and says what is new
        check = await client.receipts.verify(receipt)
        assert check.well and check.changed_days == ("2024-01-01",)

        def expired() -> set[int]:
            states = snapshot_states(catalog.load_table(OHLC.name))
            much_later = states[-1].time_ns + 400 * DAY_NS
            steps = plan_expiry(states, {}, MaintenanceSettings(), needed_ns=None, now_ns=much_later, eager=True)
            return {each for step in steps if isinstance(step, ExpireSnapshots) for each in step.snapshot_ids}

        states = {each.id for each in snapshot_states(catalog.load_table(OHLC.name))}
        assert expired() == states - {receipt.snapshot_id, s.pipeline.snapshot_id()}
        catalog.load_table(OHLC.name).maintenance.expire_snapshots().by_ids(sorted(expired())).commit()
        assert (await client.receipts.verify(receipt)).well

        await client.receipts.drop(receipt.receipt_id)
        assert expired() == {receipt.snapshot_id}
        check = await client.receipts.verify(receipt)
        assert not check.well and "does not know it" in check.faults[0]
        with pytest.raises(RequestUnknown):
            await client.receipts.drop(receipt.receipt_id)


async def test_through_the_relay_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with covered(tmp_path) as (s, client):
        receipt = await made(client)
        monkeypatch.setattr(table_rows, "is_here", lambda properties: False)
        for name in ("NAME", "URI", "WAREHOUSE"):
            monkeypatch.delenv(f"DEXORDER_CATALOG_{name}", raising=False)
        async with AsyncClient(s.running.address) as other:
            again = await made(other)
            assert again.rows == receipt.rows and again.holes == receipt.holes
            assert (await other.receipts.verify(receipt)).well
            assert {each.receipt_id for each in await other.receipts.list()} == {receipt.receipt_id, again.receipt_id}


async def test_the_command_writes_verifies_lists_and_drops(tmp_path: Path) -> None:
    async with covered(tmp_path) as (s, _):
        file, relay = tmp_path / "mine.json", ("--relay", s.running.address)

        async def run(*words: str) -> Any:
            return await asyncio.to_thread(CliRunner().invoke, app, ["receipt", *words, *relay])

        words = ("make", TICKER, "1m", "--since", "2024-01-01", "--until", "2024-01-02T09:20", "--out", str(file))
        done = await run(*words)
        assert done.exit_code == 0 and "1,997 candles, 3 periods in 2 proven holes, 2 ranges provisional" in done.stderr
        assert (await run(*words)).exit_code == 2, "no receipt is overwritten"
        done = await run("verify", str(file), "--json")
        answer = json.loads(done.stdout)
        assert (done.exit_code, answer["well"], answer["rows"], answer["holes"]) == (0, True, 1_997, 2)
        listed = json.loads((await run("list", "--json")).stdout)
        assert [each["receipt_id"] for each in listed] == [answer["receipt_id"]]
        file.write_text(file.read_text().replace('"answers": 3', '"answers": 4', 1))
        assert (await run("verify", str(file))).exit_code == 1
        assert (await run("drop", answer["receipt_id"])).exit_code == 0
        assert json.loads((await run("list", "--json")).stdout) == []
        assert (await run("drop", answer["receipt_id"])).exit_code == 1


async def test_an_incomplete_range_gets_no_receipt(tmp_path: Path) -> None:
    async with covered(tmp_path) as (s, client):
        with pytest.raises(ReceiptFailed, match=r"not complete: nothing is known of .2024-01-02T09:20"):
            await client.receipts.make(TICKER, "1m", START_NS, at(LAST + 1))
        s.pipeline.upsert([10])  # a row where coverage says that there is none
        monkey = pytest.MonkeyPatch()
        monkey.setattr("dexorder.client.receipts._ATTEMPTS", 1)
        with pytest.raises(ReceiptFailed, match="do not agree"):
            await made(client)
        monkey.undo()
        assert not receipts_in(s.pipeline.catalog.load_table(OHLC.name)), "nothing is kept for a receipt that failed"


def wanted(receipt_id: str, snapshot_id: int, digit: str = "a") -> pb.CreateReceiptRequest:
    return pb.CreateReceiptRequest(
        receipt=pb.Receipt(
            receipt_id=receipt_id,
            series=series(ticker=TICKER, period_seconds=60),
            start_ns=at(0),
            end_ns=at(10),
            snapshot_id=snapshot_id,
            document_sha256=digit * 64,
        )
    )


async def test_a_client_keeps_so_many_snapshots_and_touches_its_own_receipts_only(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", desk={"receipts": 2})
    async with guarded(tmp_path, tokens=tokens) as s:
        snapshot = s.pipeline.write(range(10))
        desk, other, boss = [(await s.stub(each)).rows for each in ("desk", "other", "boss")]
        for _ in range(3):  # a repeated call is one receipt
            await desk.CreateReceipt(wanted("one", snapshot))
        await desk.CreateReceipt(wanted("two", snapshot))
        with refused(CODE.RESOURCE_EXHAUSTED, "receipts would be 3, 2 are allowed"):
            await desk.CreateReceipt(wanted("three", snapshot))
        await other.CreateReceipt(wanted("three", snapshot))
        with refused(CODE.ALREADY_EXISTS, "'one'"):
            await other.CreateReceipt(wanted("one", snapshot))
        for call in (
            other.GetReceipt(pb.GetReceiptRequest(receipt_id="one")),
            other.DeleteReceipt(pb.DeleteReceiptRequest(receipt_id="one")),
        ):
            with refused(CODE.NOT_FOUND, "'one' is not known"):
                await call
        ids = {}
        for name, stub in (("desk", desk), ("other", other), ("boss", boss)):
            ids[name] = [each.receipt_id for each in (await stub.ListReceipts(pb.ListReceiptsRequest())).receipts]
        assert ids == {"desk": ["one", "two"], "other": ["three"], "boss": ["one", "three", "two"]}
        await boss.DeleteReceipt(pb.DeleteReceiptRequest(receipt_id="one"))
        await desk.CreateReceipt(wanted("four", snapshot))


async def test_bad_receipts_name_the_field_and_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with suite(tmp_path) as s:
        snapshot = s.pipeline.write(range(10))
        create = s.relay.rows.CreateReceipt
        for receipt_id in ("../x", "A", "a b", "-", "x" * 65, ""):
            with refused(CODE.INVALID_ARGUMENT, "receipt_id"):
                await create(wanted(receipt_id, snapshot))
        with refused(CODE.INVALID_ARGUMENT, "document_sha256"):
            await create(wanted("one", snapshot, "G"))
        with refused(CODE.FAILED_PRECONDITION, "is not kept any more"):
            await create(wanted("one", 1))
        bad = wanted("one", snapshot)
        bad.receipt.series.CopyFrom(series(ticker="*.SIM", dataset="tickers"))
        with refused(CODE.INVALID_ARGUMENT):
            await create(bad)
        monkeypatch.setattr(kept_receipts, "MAX_RECEIPTS", 1)
        await create(wanted("one", snapshot))
        with refused(CODE.RESOURCE_EXHAUSTED, "has 1 receipts"):
            await create(wanted("two", snapshot))
        assert [each.receipt_id for each in receipts_in(s.pipeline.catalog.load_table(OHLC.name))] == ["one"]


async def test_a_commit_that_loses_against_another_writer_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with suite(tmp_path) as s:
        snapshot = s.pipeline.write(range(10))
        commit, lost = commit_updates, list[int]()

        def against_a_batch(table: Any, updates: Any) -> None:
            lost.append(s.pipeline.write([100 + len(lost)]))
            if len(lost) < 3:
                raise CommitFailedException("another writer was faster")
            commit(table, updates)

        monkeypatch.setattr(kept_receipts, "commit_updates", against_a_batch)
        await s.relay.rows.CreateReceipt(wanted("one", snapshot))
        table = s.pipeline.catalog.load_table(OHLC.name)
        assert len(lost) == 3 and table.scan().to_arrow().num_rows == 13
        assert table.metadata.refs["receipt-one"].snapshot_id == snapshot


async def test_an_export_is_of_a_complete_range_and_of_the_rows_that_the_table_has(tmp_path: Path) -> None:
    async with covered(tmp_path) as (s, client):
        folder = tmp_path / "user_data"
        path = await client.export(TICKER, "1m", at(20), at(1_500), to="freqtrade", folder=folder)
        frame = feather.read_table(path)
        assert frame.num_rows == 1_480 and frame["close"].to_pylist() == [candle(m)["close"] for m in range(20, 1_500)]
        with pytest.raises(ExportFailed, match=r"not complete: nothing is known of .2024-01-02T09:20"):
            await client.export(TICKER, "1m", at(20), at(LAST + 1), to="nautilus", folder=folder)
        with pytest.raises(RequestRefused, match="takes trades"):
            await client.export(TICKER, "1m", at(20), at(30), to="hftbacktest", folder=folder)

        async def run(*words: str) -> Any:
            words = ("read", TICKER, "1m", "--since", "2024-01-01", *words, "--relay", s.running.address)
            return await asyncio.to_thread(CliRunner().invoke, app, words)

        to = ("--until", "2024-01-02T09:20", "--to", "nautilus")
        assert (await run(*to, "--out", str(folder))).exit_code == 0
        assert len(list(folder.rglob("*.parquet"))) == 1
        for wrong in ((*to,), (*to, "--out", "-"), (*to, "--out", str(folder), "--json"), (*to, "--out", str(path))):
            assert (await run(*wrong)).exit_code == 2


async def test_sql_reads_series_in_quotes_and_nothing_else(tmp_path: Path) -> None:
    table = f'"{TICKER} 1m"'
    notes = list[str]()
    async with covered(tmp_path) as (s, _), AsyncClient(s.running.address, on_note=notes.append) as client:
        query = f"SELECT count(*) AS n, max(high) AS high FROM {table}"
        assert (await client.sql(query)).to_pylist() == [{"n": 1_997, "high": LAST - 1 + 1.5}] and not notes
        part = await client.sql(
            f"SELECT a.close FROM {table} a JOIN {table} b USING (open_time) ORDER BY 1", at(5), at(8)
        )
        assert part["close"].to_pylist() == [6.0, 7.0, 8.0]
        assert (await client.sql(query, at(0), at(LAST + 5))).num_rows == 1 and "nothing is known of 1 ranges" in notes[
            0
        ]
        secret = tmp_path / "secret.csv"
        secret.write_text("a\n1\n")
        hostile = (
            f"SELECT * FROM '{secret}'",
            f"SELECT * FROM read_csv('{secret}')",
            f"COPY (SELECT 1) TO '{tmp_path / 'out'}'",
            "SELECT 1; SELECT 2",
            "SET enable_external_access = true",
            "INSTALL httpfs",
            "SELECT * FROM notes",
            "SELECT * FROM 'BTC/USDT.SIM 7m'",
            "SELEC",
            "",
        )
        for text in hostile:
            with pytest.raises(RequestRefused):
                await client.sql(text)
        assert not (tmp_path / "out").exists()
        with pytest.raises(RequestRefused, match="too many rows"):
            await client.sql(query, max_rows=1_996)

        async def run(*words: str) -> Any:
            return await asyncio.to_thread(CliRunner().invoke, app, ["sql", *words, "--relay", s.running.address])

        done = await run(f"SELECT 1 AS one FROM {table} LIMIT 2", "--json")
        assert json.loads(done.stdout) == {"row_count": 2, "rows": [{"one": 1}, {"one": 1}]}
        done = await run(f"SELECT close FROM {table} ORDER BY close", "--rows", "3")
        assert (done.exit_code, "1,994 more rows" in done.stderr, "2.0" in done.stdout) == (0, True, True)
