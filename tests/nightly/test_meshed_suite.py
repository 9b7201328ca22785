"""The whole suite behind real sidecars, under load: each sidecar and part is killed, frozen, drained and replaced.

Backfills with faults of the exchange, records with keys and acks through two gateways over gRPC and HTTP, and user
events by gRPC and ZeroMQ, for a session over gRPC and one of the page, go on all the time. Kafka has a sidecar, too. At
the end the table equals the oracle, each request had one status, each record and event came once, and no answered ack
is missing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.nightly.backfills import Backfills
from tests.nightly.mesh_load import Events, Records
from tests.nightly.mesh_plan import DESK, GATEWAYS, KAFKA, PODS, PROFILES, sidecar
from tests.nightly.meshed_suite import MeshedSuite, meshed_suite
from tests.nightly.test_mesh import envoy
from tests.nightly.watching import Listener
from tests.rig.report import print_campaign
from tests.smoke.conftest import FAULTS

__all__ = ["envoy"]  # the fixture
pytestmark = [pytest.mark.nightly, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1_500)]
CANDLES = 5_000
PAUSE_SECONDS = 1.0
Strike = Callable[[MeshedSuite, str], None]
STRIKES: tuple[Strike, ...] = (
    MeshedSuite.killed,
    MeshedSuite.frozen_for_a_while,
    MeshedSuite.frozen_and_replaced,
    MeshedSuite.drained_and_replaced,
)
PARTS = ("relay", "udsource", *GATEWAYS, "ingestor")
TO_KAFKA = [*map(sidecar, (KAFKA, *GATEWAYS))]
"""Without them a gateway can't commit the acks that it takes."""
SPARK = "spark"
"""It takes longest to come back, so only one profile strikes it in each way."""
_ENDS = (MeshedSuite.killed, MeshedSuite.frozen_and_replaced)


def plan(profile: str) -> list[tuple[str, Strike]]:
    """Return what is struck how, in order; of two profiles each has one half."""
    names = [*map(sidecar, PODS), *PARTS]
    whole = [(place + way, name, strike) for place, name in enumerate(names) for way, strike in enumerate(STRIKES)]
    halves = {"istio": (0, 1), "envoy": (0,), "short": (1,)}[profile]
    of_spark = STRIKES if profile == "istio" else (MeshedSuite.killed,)
    strikes = [(name, strike) for number, name, strike in whole if number % 2 in halves]
    return [*strikes, *((SPARK, strike) for strike in of_spark)]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_becomes_of_sidecars_and_parts_costs_nothing(envoy: Path, tmp_path: Path, profile: str) -> None:
    started_s, done = time.monotonic(), 0
    only = os.environ.get("DEXORDER_MESH_STRIKES", "")
    load = {"DEXORDER_SIM_FAULTS": json.dumps(FAULTS), "DEXORDER_SIM_LATENCY_MS": "400"}
    with (
        meshed_suite(envoy, tmp_path / "state", profile, **load) as suite,
        Listener(suite, DESK) as listener,
        Records(suite) as records,
        Events(suite) as events,
    ):
        with Backfills(suite, DESK, candles=CANDLES) as backfills:
            for name, strike in plan(profile):
                if only not in name:
                    continue
                cuts_off = name in TO_KAFKA or (name in GATEWAYS and strike in _ENDS)
                with records.no_commits() if cuts_off else nullcontext():
                    strike(suite, name)
                print(f"{time.monotonic() - started_s:5.0f} s  {name} {strike.__name__}", flush=True)
                time.sleep(PAUSE_SECONDS)
                backfills.check()
                done += 1
        rows = backfills.assert_all_ended_well(listener.statuses, 400)
        records.check()
        events.check()
    ledger = records.ledger
    repeated, uncertain = (
        sum(each) for each in zip(*((w.repeated, w.uncertain) for w in records.writers), strict=True)
    )
    print_campaign(
        f"Suite in a mesh, {profile}: {done} strikes, 0 lost, 0 doubled, 0 acks swallowed",
        ["what", "number", "remark"],
        ["requests", len(backfills.sent), f"{rows:,} rows equal the oracle"],
        [
            "records",
            len(ledger.written),
            f"each with a key, {repeated} calls repeated, {uncertain} uncertain; {ledger.repeats()}",
        ],
        ["events", len(events.sent), f"session resumed {sum(events.notes.values())} times"],
        since_s=started_s,
    )
