"""Tables without a row for the catalog of a test: those of the first test of a process, copied for the others.

A copy differs from what `load_or_create` makes in nothing but its age. It takes a tenth of the time, for a fixture that
hundreds of tests need.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from sqlalchemy import insert
from sqlalchemy.orm import Session

from dexorder_common.lake.tables import IcebergTable
from dexorder_common.model.datasets import NAMESPACE


class Made(NamedTuple):
    """A table as it was made in another catalog."""

    warehouse: str
    uuid: str
    metadata_location: str
    metadata: str


_made: dict[str, Made] = {}


def make_tables(catalog: Catalog, tables: Iterable[IcebergTable]) -> None:
    """Make sure that a catalog in SQLite has these tables."""
    tables = list(tables)
    assert isinstance(catalog, SqlCatalog)
    if catalog.namespace_exists(NAMESPACE) or not {each.name for each in tables} <= _made.keys():
        for each in tables:
            _note(catalog, each)
    else:
        with Session(catalog.engine) as session:
            session.execute(insert(IcebergNamespaceProperties).values(**_namespace(catalog)))
            session.execute(insert(IcebergTables), [_copy(catalog, each.name) for each in tables])
            session.commit()


def _note(catalog: SqlCatalog, declared: IcebergTable) -> None:
    table = declared.load_or_create(catalog)
    if declared.name not in _made and table.current_snapshot() is None:
        text = _path(table.metadata_location).read_text()
        warehouse = catalog.properties["warehouse"]
        _made[declared.name] = Made(warehouse, str(table.metadata.table_uuid), table.metadata_location, text)


def _namespace(catalog: SqlCatalog) -> dict[str, str]:
    exists = {"property_key": "exists", "property_value": "true"}  # as pyiceberg notes a namespace without properties
    return {"catalog_name": catalog.name, "namespace": NAMESPACE, **exists}


def _copy(catalog: SqlCatalog, name: str) -> dict[str, str]:
    """Write the metadata; return the row of the catalog."""
    made, warehouse = _made[name], catalog.properties["warehouse"]
    location = made.metadata_location.replace(made.warehouse, warehouse)
    path = _path(location)
    path.parent.mkdir(parents=True)
    path.write_text(made.metadata.replace(made.warehouse, warehouse).replace(made.uuid, str(uuid4())))
    namespace, _, table = name.rpartition(".")
    where = {"catalog_name": catalog.name, "table_namespace": namespace, "table_name": table}
    return {**where, "metadata_location": location, "iceberg_type": "TABLE"}


def _path(location: str) -> Path:
    return Path(urlsplit(location).path)
