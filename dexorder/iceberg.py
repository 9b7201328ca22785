"""Which Iceberg catalog to read from, and opening it with pyiceberg. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog

from dexorder.errors import CatalogError
from services.common.catalog import CatalogSettings

_SQLITE = "sqlite:///"


def catalog_properties(announced_name: str, announced: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Name and properties to use: what the relay announced, with what ``DEXORDER_CATALOG_<NAME>`` sets instead."""
    own = CatalogSettings()
    given = {field: getattr(own, field) for field in own.model_fields_set}
    name = given.pop("name", announced_name)
    return name, {**announced, **given}


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open it for reading.

    Raises:
        CatalogError: Its SQLite file is not on this machine (opening would make an empty one).
    """
    uri = properties.get("uri", "")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).is_file():
        raise CatalogError(
            f"the catalog {uri} is not on this machine; set DEXORDER_CATALOG_URI to where it can be reached"
        )
    return load_catalog(name, **properties)
