"""Commands ``dexorder realtime``: list, start and stop subscriptions."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

import dexorder
from dexorder.cli.terminal import output
from dexorder.cli.terminal.options import Json, Relay, Ticker, example, split_periods
from dexorder.cli.terminal.unknown import refuse_misspelt, refuse_unlisted
from dexorder.client.live import iso_or_none, series_name
from dexorder_common.model.realtime import (
    ProvisionalReason,
    RealtimeJobRecord,
    RealtimeState,
    StartedSubscription,
    Subscription,
)
from dexorder_common.model.times import iso

app = typer.Typer(rich_markup_mode=None)
_REASONS = {
    ProvisionalReason.MISSING_IDS: "the exchange has left out ids",
    ProvisionalReason.IDS_BEGAN_AGAIN: "the exchange's ids began again",
    ProvisionalReason.ONE_SOURCE: "one source only",
    ProvisionalReason.NOT_JOINED: "no answer shows the trades before and after a new connection yet",
}


@app.command("list", epilog=example("dexorder realtime list"))
def list_subscriptions(
    client_id: Annotated[str, typer.Option(help="Only subscriptions of this client")] = "",
    ticker: Annotated[str, typer.Option("--ticker", "-t", help="Only subscriptions to this market")] = "",
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """List the subscriptions, and the jobs that serve them."""
    with dexorder.Client(relay) as client:
        found = client.realtime.list(client_id, ticker=ticker)
    if ticker and not (found.subscriptions or found.jobs):
        refuse_misspelt(relay, ticker)
    if as_json:
        output.print_json(found.as_json())
        return
    out = output.stdout()
    columns = ("subscription", "client", "ticker", "asks for", "since", "started")
    out.print(output.plain_table(columns, map(_subscription_cells, found.subscriptions)))
    job_columns = ("ticker", "state", "ingestor", "series", "settled until", "count", "lag", "restarts", "last error")
    out.print(output.plain_table(job_columns, (cells for job in found.jobs for cells in _job_cells(job))))
    if provisional := [cells for job in found.jobs for cells in _provisional_cells(job)]:
        columns = ("ticker", "provisional from", "until", "why", "ids without a trade", "queries")
        out.print(output.plain_table(columns, provisional))


@app.command(epilog=example("dexorder realtime start BTC/USDT.BINANCE --period 1m,5m --since -1h"))
def start(
    ticker: Ticker,
    period: Annotated[str, typer.Option("--period", help="Candles to build, separated by commas: 1m,5m")] = "",
    trades: Annotated[bool, typer.Option(help="Store the trades")] = True,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", "-s", help="Complete from this time on: -1h, 2024-01-31, ISO 8601; default: from now on"
        ),
    ] = None,
    subscription_id: Annotated[
        str | None, typer.Option("--id", help="Id of the subscription; the same one again changes nothing")
    ] = None,
    client_id: Annotated[str, typer.Option(help="Name of the caller, for `realtime list`")] = "",
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """Start a subscription, which runs until it is stopped. Print its id."""
    periods = split_periods(period)

    async def started() -> str:
        async with dexorder.AsyncClient(relay) as client:
            await refuse_unlisted(client, ticker)
            return await client.realtime.start(
                ticker, periods, trades=trades, since=since, subscription_id=subscription_id, client_id=client_id
            )

    name = asyncio.run(started())
    if as_json:
        output.print_json({"subscription_id": name})
        return
    output.stdout().print(name)
    output.stderr().print(f"it runs until `dexorder realtime stop {name}`; `dexorder watch {ticker}` shows it")


@app.command(epilog=example("dexorder realtime stop rt-5f2c1e"))
def stop(
    subscription_ids: Annotated[list[str], typer.Argument(metavar="SUBSCRIPTION...", show_default=False)],
    relay: Relay = None,
) -> None:
    """Stop subscriptions. Stored rows stay."""
    with dexorder.Client(relay) as client:
        for each in subscription_ids:
            client.realtime.stop(each)
            output.stderr().print(f"{each} is stopped")


def asked(subscription: Subscription) -> str:
    """Return the data that a subscription requests."""
    return ", ".join(series_name(each) for each in subscription.params.series)


def _subscription_cells(each: StartedSubscription) -> tuple[str, ...]:
    subscription = each.subscription
    since = iso(subscription.since_ns) if subscription.since_ns is not None else "its start"
    return (
        subscription.subscription_id,
        subscription.client_id or "-",
        subscription.ticker,
        asked(subscription),
        since,
        iso(each.started_ns),
    )


def _provisional_cells(job: RealtimeJobRecord) -> list[tuple[str, ...]]:
    """Return a row for each span of trades that only one source calls complete."""
    return [
        (
            job.ticker,
            iso(each.span.start_ns),
            iso(each.span.end_ns),
            _REASONS[each.reason],
            " to ".join(dict.fromkeys(filter(None, (each.first_id, each.last_id)))) or "-",
            f"{each.queries:,}",
        )
        for each in job.provisional
    ]


def _job_cells(job: RealtimeJobRecord) -> list[tuple[str, ...]]:
    """Return a row for each series of a job; one row for a job without series."""
    state = job.state.name.lower()
    if job.state is RealtimeState.WAITING and job.next_attempt_ns:
        state = f"waiting until {iso(job.next_attempt_ns)}"
    head = (job.ticker, state, job.ingestor or "-")
    tail = (f"{job.restarts:,}", job.error or "-")
    rows: list[tuple[str, ...]] = [
        (
            *head,
            series_name(each.period_seconds),
            iso_or_none(each.settled_ns) or "-",
            f"{each.count:,}",
            f"{each.lag_ns / 1e6:,.0f} ms" if each.reported_ns else "-",
            *tail,
        )
        for each in job.series
    ]
    return rows or [(*head, "-", "-", "-", "-", *tail)]
