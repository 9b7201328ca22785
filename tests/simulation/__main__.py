"""``python -m tests.simulation SEED`` runs one seed and prints its story; with ``--runs N`` the N seeds from it on."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import cast

from tests.simulation.loop import Spinning
from tests.simulation.run import Broken, Run

PARTS = {
    "history": "history",
    "history-files": "history:simulate_files",
    "realtime": "realtime_profiles",
    "events": "events",
    "triggers": "triggers",
    "trigger-changes": "triggers:simulate_changes",
    "suite": "suite",
}
"""Modules of the parts, with the name of the function if it is not ``simulate``."""
Simulate = Callable[[int], Run]


def simulate_of(part: str) -> Simulate:
    """Return the function that runs a seed of a part."""
    module, _, name = PARTS[part].partition(":")
    return cast(Simulate, getattr(importlib.import_module(f"tests.simulation.{module}"), name or "simulate"))


def run_many(simulate: Simulate, seeds: Sequence[int]) -> dict[int, str]:
    """Run seeds and return, for each that is broken, the promise that did not hold."""
    found = {}
    for seed in seeds:
        try:
            simulate(seed)
        except (Broken, Spinning) as broken:
            found[seed] = str(broken)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="dexorder-sim", description="Run parts of the suite in virtual time.")
    parser.add_argument("seed", type=int, help="a run is a function of it")
    parser.add_argument("--part", choices=PARTS, default="history", help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=1, help="number of seeds, from this one on")
    given = parser.parse_args(arguments)
    simulate, started = simulate_of(given.part), time.process_time()
    if given.runs > 1:
        broken = run_many(simulate, range(given.seed, given.seed + given.runs))
        for seed, promise in broken.items():
            print(f"seed {seed}: {promise}")
        used = time.process_time() - started
        print(f"{len(broken)} of {given.runs} runs broken; {60 * given.runs / used:.0f} runs a CPU minute")
        return int(bool(broken))
    try:
        print("\n".join(simulate(given.seed).story))
    except Broken as error:
        print("\n".join([*error.story, f"seed {given.seed}: {error}"]))
        return 1
    print(f"seed {given.seed}: every promise holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
