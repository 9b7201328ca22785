"""Dialects by ccxt's id: the module of this folder with this name, or the default. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from dexorder_ingestor.exchange.dialect import Dialect
from dexorder_ingestor.exchange.dialects import default


def dialect_modules() -> Iterator[ModuleType]:
    """Yield the modules with the facts about one exchange, by name."""
    for found in iter_modules(__path__, f"{__name__}."):
        if found.name != default.__name__:
            yield import_module(found.name)


def _load() -> Iterator[tuple[str, Dialect]]:
    for module in dialect_modules():
        dialect: Dialect = module.DIALECT
        for ccxt_id in (dialect.ccxt, *dialect.twins):
            archive = dialect.archive if ccxt_id == dialect.ccxt else None
            yield ccxt_id, replace(dialect, ccxt=ccxt_id, archive=archive)


DIALECTS: Mapping[str, Dialect] = dict(_load())
"""Exchanges about which something is known."""


def dialect_of(ccxt_id: str, features: Mapping[str, Any] | None = None) -> Dialect:
    """Return the facts about an exchange; ``features`` are ccxt's, for an exchange without a module."""
    return DIALECTS.get(ccxt_id) or default.default_dialect(ccxt_id, features)
