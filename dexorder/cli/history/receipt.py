"""``dexorder receipt``: make, verify, list and drop receipts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import dexorder
from dexorder.cli.terminal import output
from dexorder.cli.terminal.options import Json, Period, Relay, Since, Ticker, Until, example
from dexorder.client.receipts import ListedReceipt, ReceiptCheck
from dexorder.errors import RequestRefused
from dexorder.receipts.receipt import Receipt
from dexorder_common.model.history import range_json
from dexorder_common.model.times import iso

app = typer.Typer(rich_markup_mode=None)
File = Annotated[Path, typer.Argument(help="File of the receipt", show_default=False)]


@app.command(epilog=example("dexorder receipt make BTC/USDT.BINANCE 1h --since 2024-01 --until 2024-07"))
def make(
    ticker: Ticker,
    period: Period,
    since: Since = None,
    until: Until = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the receipt; default: receipt-ID.json; - is stdout")
    ] = None,
    relay: Relay = None,
) -> None:
    """Write a receipt for the rows of a complete range; the table keeps its snapshot until the receipt is dropped."""
    if since is None:
        raise typer.BadParameter("--since is missing: a receipt is for the rows of a range")
    if out is not None and str(out) != "-" and (out.exists() or not out.absolute().parent.is_dir()):
        raise typer.BadParameter(f"--out: {str(out)!r} exists already, or its folder does not exist")
    with dexorder.Client(relay) as client:
        made = client.receipts.make(ticker, period, since, until or "now")
        if out is not None and str(out) == "-":
            print(made, end="")
        else:
            out = out or Path(f"receipt-{made.receipt_id}.json")
            try:
                with out.open("x", encoding="utf-8") as file:
                    file.write(str(made))
            except OSError as error:
                client.receipts.drop(made.receipt_id)
                raise RequestRefused(f"--out: {str(out)!r} can't be written: {error}; nothing is kept") from None
    output.stderr().print(_summary(made) + ("" if str(out) == "-" else f"; written to {out}"))


@app.command(epilog=example("dexorder receipt verify receipt-3f2a91c04d5e6b78.json"))
def verify(file: File, as_json: Json = False, relay: Relay = None) -> None:
    """Compare a receipt with the rows of its snapshot, and with the table now. Exit code 0 if all is as it says."""
    known = Receipt.load(file)
    with dexorder.Client(relay) as client:
        check = client.receipts.verify(known)
    if as_json:
        output.print_json(_check_json(known, check))
    else:
        _print_check(known, check)
    raise typer.Exit(0 if check.well else 1)


@app.command("list", epilog=example("dexorder receipt list"))
def list_receipts(as_json: Json = False, relay: Relay = None) -> None:
    """List the receipts that keep their snapshots."""
    with dexorder.Client(relay) as client:
        found = client.receipts.list()
    if as_json:
        output.print_json(list(map(_listed_json, found)))
        return
    columns = ("receipt", "client", "ticker", "period", "since", "until", "snapshot", "made")
    output.stdout().print(output.plain_table(columns, map(_cells, found)))


@app.command(epilog=example("dexorder receipt drop 3f2a91c04d5e6b78"))
def drop(
    receipt: Annotated[str, typer.Argument(help="Id of a receipt, or its file", show_default=False)],
    relay: Relay = None,
) -> None:
    """Drop a receipt: the table no longer keeps its snapshot."""
    path = Path(receipt)
    receipt_id = Receipt.load(path).receipt_id if path.suffix or path.exists() else receipt
    with dexorder.Client(relay) as client:
        client.receipts.drop(receipt_id)


def _summary(known: Receipt) -> str:
    return f"receipt {known.receipt_id}: {known.summary}"


def _print_check(known: Receipt, check: ReceiptCheck) -> None:
    out = output.stdout()
    out.print(_summary(known))
    for fault in check.faults:
        out.print(f"- {fault}")
    if check.well:
        out.print("rows, holes and document agree")
    if check.changed_days:
        shown = ", ".join(check.changed_days[:5]) + (" and others" if len(check.changed_days) > 5 else "")
        out.print(f"the table has other rows now on {len(check.changed_days):,} days: {shown}")


def _check_json(known: Receipt, check: ReceiptCheck) -> dict[str, Any]:
    return {
        "receipt_id": known.receipt_id,
        "well": check.well,
        "faults": list(check.faults),
        "changed_days": list(check.changed_days),
        "rows": known.rows.count,
        "sha256": known.rows.sha256,
        "holes": len(known.holes),
        "provisional": len(known.provisional),
    }


def _listed_json(each: ListedReceipt) -> dict[str, Any]:
    return {
        "receipt_id": each.receipt_id,
        "client_id": each.client_id,
        "ticker": each.series.ticker,
        "dataset": each.series.dataset.name,
        "period_seconds": each.series.period_seconds,
        **range_json(each.span),
        "snapshot_id": each.snapshot_id,
        "created_at": iso(each.created_ns),
    }


def _cells(each: ListedReceipt) -> tuple[str, ...]:
    return (
        each.receipt_id,
        each.client_id,
        each.series.ticker,
        each.series.dataset.period_name(each.series.period_seconds),
        iso(each.span.start_ns),
        iso(each.span.end_ns),
        str(each.snapshot_id),
        iso(each.created_ns),
    )
