"""Random numbers of a run, from one seed: always the same in the gate, a new one in `make nightly`, which prints it."""

from __future__ import annotations

import os
from random import Random

SEED = int(os.environ.get("DEXORDER_TEST_SEED") or 36)


def seeded(purpose: str) -> Random:
    """Return a generator for one purpose, so that its numbers do not depend on the tests before; print the seed."""
    print(f"{purpose}: random numbers with seed {SEED}; repeat with DEXORDER_TEST_SEED={SEED}")
    return Random(f"{SEED} {purpose}")
