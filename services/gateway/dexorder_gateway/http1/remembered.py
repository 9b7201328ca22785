"""Results of pure functions that are asked for again and again with what a client sends."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

Given = TypeVar("Given", str, bytes)
Result = TypeVar("Result")
MAX_LENGTH = 256
"""A longer argument is not kept: strangers choose it, and hundreds of them would take megabytes."""


def remembered(function: Callable[[Given], Result], count: int) -> Callable[[Given], Result]:
    """Return the function with its last ``count`` results for short arguments kept."""
    kept = lru_cache(maxsize=count)(function)

    def call(given: Given) -> Result:
        return kept(given) if len(given) <= MAX_LENGTH else function(given)

    return call
