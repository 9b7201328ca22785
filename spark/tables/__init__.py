"""Iceberg tables that the driver writes and maintains."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from services.common.lake.tables import COVERAGE, DEAD_LETTERS, OHLC

TABLES = (OHLC, COVERAGE, DEAD_LETTERS)


def ensure_tables(catalog: Catalog) -> None:
    """Create the tables that do not exist; leave the others unchanged."""
    for table in TABLES:
        table.load_or_create(catalog)
