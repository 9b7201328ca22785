"""Numbers of examples of properties that take long."""

from __future__ import annotations

from hypothesis import settings

NIGHTLY_TIMES = 12


def few(count: int) -> int:
    """Return ``count`` for `max_examples`, and in `make nightly` ``NIGHTLY_TIMES`` as many."""
    return count * (NIGHTLY_TIMES if settings.get_current_profile_name() == "nightly" else 1)
