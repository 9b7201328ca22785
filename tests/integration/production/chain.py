"""Checks of a suite with an external catalog, for every type of catalog."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from dexorder import Client
from dexorder.client.inputs import make_request
from dexorder_common.model.time_range import TimeRange
from tests.rig.oracle import assert_equal, minutes, oracle
from tests.rig.suite import Suite

CANDLES = 2_500
FIRST, SECOND = minutes(0, CANDLES), minutes(CANDLES - 500, CANDLES)
BOTH = TimeRange(FIRST.start_ns, SECOND.end_ns)


def check_history(client: Client) -> None:
    """Run one request and return the rows as the Client reads them."""
    assert_equal(client.history("BTC/USDT.SIM", "1m", FIRST.start_ns, FIRST.end_ns), _expected(FIRST))


def check_histories(suite: Suite) -> None:
    """Run a request, then an overlapping one during which Spark is killed; return the rows as the Client reads them."""
    with Client(suite.relay) as client:
        check_history(client)
        request = make_request(uuid.uuid4().hex, "BTC/USDT.SIM", "1m", SECOND.start_ns, SECOND.end_ns)
        client.submit(request)
        suite.kill("spark")
        rows = client.read(client.wait(request.request_id, timeout=300))
        assert_equal(rows, _expected(SECOND))
        # the table has all rows now: this request is answered from it alone
        assert_equal(client.history("BTC/USDT.SIM", "1m", BOTH.start_ns, BOTH.end_ns), _expected(BOTH))


def _expected(span: TimeRange) -> pa.Table:
    return oracle("BTC/USDT", "1m", span)


def told(directory: Path, secrets: Iterable[str]) -> list[str]:
    """Return the places that expose a secret: logs and state of the suite, command lines of all processes."""
    places = [path for path in directory.rglob("*.log") if path.is_file()] + [directory / "suite.json"]
    places += [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.name != str(os.getpid())]
    found = []
    for path in places:
        try:
            text = path.read_bytes()
        except OSError:  # the process has ended
            continue
        found += [f"{secret[:3]}… in {path}" for secret in secrets if secret.encode() in text]
    return found
