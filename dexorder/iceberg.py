"""Which Iceberg catalog to read from, and opening it with pyiceberg. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyiceberg.catalog import Catalog

from dexorder.errors import CatalogError
from services.common.config import BadSettings, read_settings
from services.common.lake import catalog

_SQLITE = "sqlite:///"


def catalog_properties(announced_name: str, announced: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Name and properties to use: what the relay announced, with what ``DEXORDER_CATALOG_<NAME>`` sets instead.

    The relay announces no secrets; those come from here.

    Raises:
        CatalogError: A variable has a bad value; names it.
    """
    try:
        own = read_settings(catalog.CatalogSettings)
    except BadSettings as error:
        raise CatalogError(str(error)) from None
    return own.name if "name" in own.model_fields_set else announced_name, own.over(announced)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open it for reading.

    Raises:
        CatalogError: Its SQLite file is not on this machine (opening would make an empty one), or it can't be reached.
    """
    uri = properties.get("uri", "")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).is_file():
        raise CatalogError(
            f"the catalog {uri} is not on this machine; set DEXORDER_CATALOG_URI to where it can be reached"
        )
    try:
        return catalog.open_catalog(name, properties)
    except Exception as error:  # each kind of catalog has errors of its own
        raise CatalogError(
            f"catalog {name} can't be opened: {(str(error) or type(error).__name__).splitlines()[0]}; what the relay "
            "does not announce (password, keys) is set by DEXORDER_CATALOG_PASSWORD and DEXORDER_CATALOG_PROPERTIES"
        ) from error
