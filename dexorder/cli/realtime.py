"""Commands ``dexorder realtime``: list, start and stop subscriptions."""

from __future__ import annotations

from collections.abc import Sequence

from dexorder.cli import output
from dexorder.client import Client
from dexorder.live import LiveJob, LiveStatus, Subscription
from services.common.model.periods import PERIODS
from services.common.model.times import iso


def list_subscriptions(client_id: str, ticker: str, as_json: bool, relay: str | None) -> None:
    """Print the subscriptions and the jobs that serve them."""
    with Client(relay) as client:
        found = client.list_realtime(client_id, ticker=ticker)
    if as_json:
        subscriptions = [each.as_json() for each in found.subscriptions]
        output.print_json({"subscriptions": subscriptions, "jobs": [each.as_json() for each in found.jobs]})
        return
    out = output.stdout()
    columns = ("subscription", "client", "ticker", "asks for", "since", "started")
    out.print(output.plain_table(columns, map(_subscription_cells, found.subscriptions)))
    job_columns = ("ticker", "state", "ingestor", "series", "settled until", "count", "lag", "restarts", "last error")
    out.print(output.plain_table(job_columns, (cells for job in found.jobs for cells in _job_cells(job))))


def start(
    ticker: str,
    periods: Sequence[str],
    *,
    trades: bool,
    since: str | None,
    subscription_id: str | None,
    client_id: str,
    as_json: bool,
    relay: str | None,
) -> None:
    """Start a subscription and print its id."""
    with Client(relay) as client:
        name = client.start_realtime(
            ticker, periods, trades=trades, since=since, subscription_id=subscription_id, client_id=client_id
        )
    if as_json:
        output.print_json({"subscription_id": name})
        return
    output.stdout().print(name, markup=False)
    output.stderr().print(
        f"it runs until `dexorder realtime stop {name}`; `dexorder watch {ticker}` shows it", markup=False
    )


def stop(subscription_ids: Sequence[str], relay: str | None) -> None:
    """Stop subscriptions."""
    with Client(relay) as client:
        for each in subscription_ids:
            client.stop_realtime(each)
            output.stderr().print(f"{each} is stopped", markup=False)


def asked(subscription: Subscription) -> str:
    """Return what a subscription asks for."""
    return ", ".join([*(["trades"] if subscription.trades else []), *(PERIODS[each] for each in subscription.periods)])


def _subscription_cells(each: Subscription) -> tuple[str, ...]:
    since = iso(each.since_ns) if each.since_ns is not None else "its start"
    return (
        each.subscription_id,
        each.client_id or "-",
        each.ticker,
        asked(each),
        since,
        iso(each.started_ns),
    )


def _job_cells(job: LiveJob) -> list[tuple[str, ...]]:
    """Return a row for each series of a job; one row if it has none."""
    state = str(job.status).lower()
    if job.status is LiveStatus.WAITING and job.next_attempt_ns:
        state = f"waiting until {iso(job.next_attempt_ns)}"
    head = (job.ticker, state, job.ingestor or "-")
    tail = (f"{job.restarts:,}", job.last_error or "-")
    rows: list[tuple[str, ...]] = [
        (
            *head,
            each.name,
            iso(each.settled_until_ns) if each.settled_until_ns else "-",
            f"{each.count:,}",
            f"{each.lag_ns / 1e6:,.0f} ms" if each.reported_ns else "-",
            *tail,
        )
        for each in job.series
    ]
    return rows or [(*head, "-", "-", "-", "-", *tail)]
