"""After a cut of the power each store has everything that it has called durable: what it did not sync is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.durable_warehouse import COLLECTED
from tests.rig.durable_writers import BATCHES, PARTS, read
from tests.rig.power_cut import PowerCut

_NIGHTLY = (pytest.mark.nightly, pytest.mark.timeout(900))


@pytest.mark.parametrize(
    ("part", "writes"),
    [
        *((part, 2 * BATCHES + 7) for part in PARTS if part not in ("contacts", "warehouse")),
        ("warehouse", 2 * COLLECTED + 1),
        pytest.param("contacts", 2 * BATCHES + 7, marks=_NIGHTLY),  # events.db is the gateway's as well
        *(pytest.param(part, writes, marks=_NIGHTLY) for part in PARTS for writes in (1, 400)),
        # A write of the warehouse is a commit of its table and takes a quarter of a second beside other campaigns.
        *(pytest.param(part, 2_000, marks=_NIGHTLY) for part in PARTS if part != "warehouse"),
    ],
)
async def test_what_was_called_durable_outlives_a_power_cut(part: str, writes: int, tmp_path: Path) -> None:
    power = PowerCut(tmp_path)
    with power.start("tests.rig.durable_writers", part, str(power.files)) as process:
        assert process.stdout is not None
        last = -1
        for line in process.stdout:
            last = int(line)
            if last + 1 >= writes:
                break
        process.kill()
        last = max([last, *map(int, filter(str.isdigit, process.stdout.read().split()))])
    power.cut()
    assert await read(part, power.files) > last
