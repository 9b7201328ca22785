"""Client library, command line and local suite.

>>> from dexorder import Client
>>> with Client() as client:
...     rows = client.history("BTC/USDT.SIM", "1h", "2024-01-01", "2024-01-02T06:00")
>>> rows.num_rows
30
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dexorder.client.async_client import AsyncClient
    from dexorder.client.blocking import Client
    from dexorder.client.inputs import make_request
    from dexorder.errors import DexorderError, HistoryError
    from dexorder.rows.table import Rows
    from dexorder_common.model.history import HistoryRequest, Notification, Progress

    __version__: str

__all__ = [
    "AsyncClient",
    "Client",
    "DexorderError",
    "HistoryError",
    "HistoryRequest",
    "Notification",
    "Progress",
    "Rows",
    "make_request",
]
_VALUES = "dexorder_common.model.history"
_HOMES = {
    "AsyncClient": "dexorder.client.async_client",
    "Client": "dexorder.client.blocking",
    "DexorderError": "dexorder.errors",
    "HistoryError": "dexorder.errors",
    "HistoryRequest": _VALUES,
    "Notification": _VALUES,
    "Progress": _VALUES,
    "Rows": "dexorder.rows.table",
    "make_request": "dexorder.client.inputs",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from dexorder_common.packages import version

        return version()
    # Loaded at first use: the set-up imports this package before gRPC is installed.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
