"""Cheap clients of ccxt, for tests that build one each."""

from __future__ import annotations

import ssl

import ccxt.async_support as ccxt
import pytest


@pytest.fixture(autouse=True, scope="session")
def cheap_clients() -> None:
    """Share one TLS context and skip the pause of 250 ms at close, which only TLS needs; no test uses TLS."""
    ccxt.Exchange.ssl_context = ssl.create_default_context()
    ccxt.Exchange.timeout_on_exit = 0
