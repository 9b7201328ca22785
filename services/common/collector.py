"""The garbage collector at rest while much is built that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
