"""What saturates first, by the model of `bench.capacity`."""

from __future__ import annotations

from bench.parts.capacity_model import Costs, Load, needs

COSTS = Costs(
    relay_request=4_000,
    relay_report=30,
    relay_firing=30,
    alert_row=7,
    trade={"ingestor": 100.0},
    commit_seconds={100: 0.03, 1_000: 0.12},
)


def test_the_part_whose_spread_ends_first_comes_first() -> None:
    found = needs(Load(10_000, 2.0, requests=5, firings=100, host_cores=64), COSTS)
    by_part = {each.part: each for each in found}
    relay = by_part["relay"]
    assert (round(relay.cores, 3), round(relay.ends_at or 0, 2)) == (0.323, 3.1)
    assert by_part["ingestor"].cores == 2.0 and by_part["ingestor"].ends_at is None
    assert round(by_part["driver: a commit of trades"].cores, 2) == 1.02
    assert round(by_part["calls, if all are to one exchange"].ends_at or 0, 2) == 3.28
    assert found[0] is relay and found[-1] is by_part["ingestor"]


def test_a_load_without_requests_needs_no_calls() -> None:
    found = needs(Load(10, 1.0, requests=0, firings=0, host_cores=2), COSTS)
    assert [each.ends_at for each in found if each.part.startswith("calls")] == [None]
