import json
from functools import partial

import pytest

from dexorder import Client
from dexorder.client.inputs import make_request
from tests.fakes.candle_table import HOUR_NS, HOURS, START, TICKER
from tests.fakes.relay_server import FakeRelay, Notify, ended
from tests.rig.command import dexorder

run = partial(dexorder, "requests")


@pytest.fixture
def three(fake: FakeRelay) -> FakeRelay:
    """Finished requests one and three of client a, and unfinished request two of client b."""
    with Client() as client:
        for name, ticker, who in (("one", TICKER, "a"), ("two", "ETH/USDT.SIM", "b"), ("three", TICKER, "a")):
            client.submit(make_request(name, ticker, "1h", "2024-01-01", "2024-01-02T06:00", client_id=who, limit=40))
    fake.stuck_tickers = {"ETH/USDT.SIM"}
    return fake


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["three", "two", "one"]),
        (["--limit", "2"], ["three", "two"]),
        (["--client-id", "a"], ["three", "one"]),
        (["--state", "running"], ["two"]),
        (["--state", "FINISHED", "--client-id", "b"], []),
    ],
)
def test_requests_are_listed(three: FakeRelay, options: list[str], names: list[str]) -> None:
    listed = run("list", "--json", *options)
    assert [record["request_id"] for record in json.loads(listed.stdout)] == names
    table = run("list", *options).stdout
    assert [line.split()[0] for line in table.splitlines() if "USDT" in line] == names


def test_provisional_ranges_are_named(three: FakeRelay) -> None:
    three.ends.empty_periods = 5
    three.ends.provisional.add(start_ns=START, end_ns=START + 3 * HOUR_NS)
    shown = {line[:16].strip(): line[16:].strip() for line in run("show", "one").stdout.splitlines()}
    assert shown["provisional"].startswith(
        "3 of the empty periods are provisional, [2024-01-01T00:00:00Z, 2024-01-01T03"
    )
    found = json.loads(run("show", "one", "--json").stdout)
    assert [each["start_ns"] for each in found["provisional"]] == [START]


def test_a_request_is_shown(three: FakeRelay) -> None:
    three.ends.answered_end_ns = START + HOURS * HOUR_NS
    shown = {line[:16].strip(): line[16:].strip() for line in run("show", "one").stdout.splitlines()}
    assert shown["requested"] == f"{TICKER} 1h [2024-01-01T00:00:00Z, 2024-01-02T06:00:00Z), the first 40"
    assert shown["state"] == "OK" and shown["client"] == "a" and shown["missing"] == "-"
    assert shown["progress"] == "30 of 30 candles settled, finished"
    assert shown["rows"] == "30, 0 periods verified empty" and shown["snapshot"] == str(three.ends.snapshot_id)
    assert shown["answered until"] == "2024-01-02T06:00:00Z"
    found = json.loads(run("show", "one", "--json").stdout)
    assert (found["status"], found["answered_until"], found["snapshot_id"]) == (
        "OK",
        "2024-01-02T06:00:00Z",
        str(three.ends.snapshot_id),
    )


def test_missing_ranges_are_listed(three: FakeRelay) -> None:
    missing = [{"start_ns": START + 2 * i * HOUR_NS, "end_ns": START + (2 * i + 1) * HOUR_NS} for i in range(25)]
    three.ends = ended(Notify.ERROR, error_message="gave up", missing=missing)
    shown = run("show", "one").stdout
    assert "25 ranges" in shown and "5 more; --json prints them" in shown
    assert shown.count("[2024-01-0") == 21  # what was requested, and twenty of them
    assert len(json.loads(run("show", "one", "--json").stdout)["missing"]) == 25


def test_a_request_is_cancelled(three: FakeRelay) -> None:
    assert run("cancel", "two").exit_code == 0
    assert three.cancelled == ["two"]
    unknown = run("show", "other")
    assert unknown.exit_code == 1 and "'other' is unknown" in unknown.stderr
