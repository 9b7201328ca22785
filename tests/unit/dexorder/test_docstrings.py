"""Examples in docstrings of the client, run against a relay."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.fakes.relay_server import FakeRelay

EXAMPLES = {
    "dexorder": 3,
    "dexorder.client.blocking": 5,
    "dexorder.rows.columns": 5,
    "dexorder.client.moments": 1,
    "dexorder.client.inputs": 2,
    "dexorder.rows.table": 7,
}
"""Modules, and the number of examples that each has."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, fake: FakeRelay) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted) == (0, EXAMPLES[name])
