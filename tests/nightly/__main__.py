"""``make nightly``: runs every part of the night, also after one has failed, and writes bench/results/nightly.md.

The parts of a lane run one after another, and the two lanes at once: campaigns mostly wait for their suites, so the
tests that only compute run beside them at the lowest priority. The limits of each lane add up to at most four hours.
Words choose parts: ``python -m tests.nightly properties``. The seed of random examples is `DEXORDER_TEST_SEED`, or a
new one; the page names it.
"""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.nightly.results import FILE, PartResult, page, read_results
from tests.paths import ROOT

PAGE = ROOT / "bench" / "results" / "nightly.md"
GATE = "not smoke and not nightly and not soak"
PARALLEL = "-n 4 --dist loadgroup --no-loadscope-reorder"
COVERED = "tests/unit --ignore=tests/unit/simulation"
"""The simulation runs many lines and says of few of them what they must do."""
COVERAGE = (
    f"python -m coverage erase && python -m coverage run -m pytest -q {PARALLEL} {COVERED}; tests=$?; "
    "python -m coverage combine --quiet && python -m coverage report && exit $tests"
)


class Lane(Enum):
    """Parts that run one after another."""

    SUITES = "suites"
    """At normal priority, with the output on the terminal."""
    COMPUTING = "computing"
    """At the lowest priority; the terminal gets the output of a part when it has ended."""


@dataclass(frozen=True, slots=True)
class Part:
    """A command of the night.

    Attributes:
        arguments: Arguments of pytest; None if the command is another one.
        limit_seconds: Time after which it is stopped, with all processes of its group.
    """

    name: str
    limit_seconds: int
    arguments: str | None = None
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    lane: Lane = Lane.SUITES

    def line(self, seed: str) -> str:
        """Return the command as a line for a shell."""
        if self.arguments is None:
            return self.command
        return f"python -m pytest -p tests.nightly.results {self.arguments.format(seed=seed)}"


SHORT = {
    "KILLS": "2",
    "SLOWER": "4",
    "GATEWAY_CHANGES": "10",
    "GATEWAY_KILLS": "3",
    "GATEWAY_OUTAGE_SECONDS": "10",
    "PROTOBUFS": "500",
    "SOURCE_KILLS": "4",
    "SPARK_DEATHS": "3",
    "CUTS": "50",
    "UDF_DRIVER_KILLS": "2",
    "UDF_KILLS": "5",
    "TRADES_STRIKES": "20",
    "TRADES_KILLS": "1",
    "STEPS": "10000",
}
"""Sizes of the campaigns that only `make soak` runs otherwise, without the beginning DEXORDER_SOAK_ of their names."""
SHORT_CAMPAIGNS = (
    "test_broker_campaign.py::test_the_rules_hold_through_every_step",
    "test_grpc_campaign.py",
    "test_lost_answers_campaign.py",
    "test_gateway_campaign.py",
    "test_kill_campaign.py",
    "test_spark_fault_campaign.py",
    "test_source_campaign.py",
    "test_udf_stage_campaign.py",
    "test_udf_stream_campaign.py",
    "test_realtime_campaign.py::test_tables_equal_the_recorded_trades[parts]",
)
TRANSPORTS = *(f"DEXORDER_{part}_TRANSPORT" for part in ("RELAY", "GATEWAY", "UDSOURCE")), "TRANSPORT"

PARTS = (
    Part("campaigns", 10_000, "-m 'nightly and not soak'"),
    Part(
        "short-campaigns",
        2_400,
        "-m soak " + " ".join(f"'tests/nightly/{each}'" for each in SHORT_CAMPAIGNS),
        environment={f"DEXORDER_SOAK_{name}": size for name, size in SHORT.items()},
    ),
    Part(
        "grpcio-transport",
        900,
        f"-m '{GATE}' tests/conformance tests/unit/services/common/rpc tests/unit/services/relay "
        "tests/integration/services/udsource tests/integration/services/gateway",
        environment=dict.fromkeys(TRANSPORTS, "grpcio"),
    ),
    Part("stock-broker", 400, f"-m '{GATE}' tests/conformance/pixy", environment={"DEXORDER_TEST_AUTO_CREATE": "1"}),
    Part("deploy", 600, f"-m '{GATE}' tests/unit/deploy"),
    Part(
        "properties",
        2_400,
        PARALLEL + " --timeout=900 -m 'hypothesis and not smoke and not soak'"
        " --hypothesis-profile=nightly --hypothesis-seed={seed}",
        lane=Lane.COMPUTING,
    ),
    Part("breaks", 7_200, command="python -m tests.breaks", lane=Lane.COMPUTING),
    Part(
        "mutations",
        2_400,
        command="python -m tests.mutations --seed $DEXORDER_TEST_SEED --count 3",
        lane=Lane.COMPUTING,
    ),
    Part("coverage", 2_400, command=COVERAGE, lane=Lane.COMPUTING),
)


async def run_part(part: Part, seed: str, folder: Path) -> PartResult:
    """Run a part to its end or its limit."""
    lines = folder / f"{part.name}.jsonl"
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment = {**ours, **part.environment, "DEXORDER_TEST_SEED": seed, FILE: str(lines)}
    line = part.line(seed)
    print(f"== {part.name}: {line}", flush=True)
    began = time.monotonic()
    with (folder / f"{part.name}.log").open("w+") as log:
        command, output = (["bash", "-c", line], None)
        if part.lane is Lane.COMPUTING:
            command, output = (["nice", "-n", "19", *command], log)
        child = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = await asyncio.wait_for(child.wait(), part.limit_seconds)
            result = "passed" if code == 0 else f"failed (exit code {code})"
        except TimeoutError:
            result = "stopped at its limit"
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        log.seek(0)
        print(f"== {part.name}: {result}\n{log.read()}", flush=True)
    return PartResult(part.name, time.monotonic() - began, result, read_results(lines))


def run_parts(parts: Sequence[Part], seed: str, to: Path) -> bool:
    """Run the parts of both lanes, and write the page after each part; return whether all have passed."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    facts = (
        f"Commit {commit.stdout.strip() or 'unknown'}, begun {date}, {os.cpu_count()} cores, seed {seed}: repeat with"
    )
    facts = f"{facts} `DEXORDER_TEST_SEED={seed} python -m tests.nightly {shlex.join(part.name for part in parts)}`."
    began = time.monotonic()
    done: list[PartResult] = []

    def ended(result: PartResult) -> None:
        done.append(result)
        to.write_text(page("`make nightly`", facts, done, time.monotonic() - began))

    with tempfile.TemporaryDirectory(prefix="dexorder-nightly-") as folder:
        asyncio.run(_run_lanes(parts, seed, Path(folder), ended))
    print(to.read_text())
    return all(each.result == "passed" for each in done)


async def _run_lanes(parts: Sequence[Part], seed: str, folder: Path, ended: Callable[[PartResult], None]) -> None:
    async def run_lane(lane: Lane) -> None:
        for part in parts:
            if part.lane is lane:
                ended(await run_part(part, seed, folder))

    await asyncio.gather(*map(run_lane, Lane))


def main(words: Sequence[str]) -> int:
    """Run the parts that the words name, all by default; 1 if one has failed."""
    unknown = set(words) - {part.name for part in PARTS}
    if unknown:
        print(f"unknown parts {sorted(unknown)}; there are {[part.name for part in PARTS]}", file=sys.stderr)
        return 2
    seed = os.environ.get("DEXORDER_TEST_SEED") or str(random.SystemRandom().randrange(1, 2**30))
    chosen = [part for part in PARTS if not words or part.name in words]
    return 0 if run_parts(chosen, seed, PAGE) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
