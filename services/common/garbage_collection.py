"""The garbage collector at rest while much is built that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MIDDLE_ONES = 1_000
"""Collections of those that are not young, to one of all."""


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No collection in the block, and none later of what it leaves: to look through it all again and again takes longer
    than to build it. What nobody holds any more is freed all the same, unless it is in a cycle."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def seldom_all() -> None:
    """Look through all objects a hundred times less often than Python would; through young ones as ever.

    Where hundreds of thousands of them stay, everything stands still for a quarter of a second each time.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_ONES)
