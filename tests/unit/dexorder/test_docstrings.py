"""Examples in docstrings of the client, run against a relay."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.fakes.relay_server import FakeRelay

EXAMPLES = {
    "dexorder": 3,
    "dexorder.client": 5,
    "dexorder.columns": 5,
    "dexorder.moments": 1,
    "dexorder.request": 2,
    "dexorder.rows": 7,
}
"""Modules, and the number of examples that each has."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, fake: FakeRelay) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted) == (0, EXAMPLES[name])
