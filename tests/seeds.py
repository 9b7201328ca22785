"""Random numbers of a run, from one seed that is printed and can be repeated."""

from __future__ import annotations

import os
import secrets
from random import Random

SEED = int(os.environ.get("DEXORDER_TEST_SEED") or secrets.randbelow(2**31))


def seeded(purpose: str) -> Random:
    """Return a generator for one purpose, so that its numbers do not depend on the tests before; print the seed."""
    print(f"{purpose}: random numbers with seed {SEED}; repeat with DEXORDER_TEST_SEED={SEED}")
    return Random(f"{SEED} {purpose}")
