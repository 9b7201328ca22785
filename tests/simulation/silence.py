"""Runs without the suite's log: its lines cost more than the rules that write them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import structlog

T = TypeVar("T")


def quietly(work: Callable[[], T]) -> T:
    """Return the result of some work, during which only CRITICAL lines are written."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        return work()
    finally:
        structlog.configure(**before)
