"""Where the Iceberg tables are: one set of settings for the relay, Spark and clients."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from pyiceberg.catalog import Catalog, load_catalog

NAMESPACE = "trading"
OHLC_TABLE = f"{NAMESPACE}.ohlc"
COVERAGE_TABLE = f"{NAMESPACE}.coverage"
DEAD_LETTER_TABLE = f"{NAMESPACE}.dead_letters"


class CatalogSettings(BaseSettings):
    """The catalog, as pyiceberg's SqlCatalog and Iceberg's JdbcCatalog both reach it. ``DEXORDER_CATALOG_<NAME>``."""

    model_config = SettingsConfigDict(frozen=True, env_prefix="DEXORDER_CATALOG_", extra="ignore")

    name: str = "dexorder"
    """Catalog name; part of the key in the catalog's tables, so it must be the same everywhere."""
    uri: str = "sqlite:///catalog.db"
    """SQLAlchemy URI of the catalog's database."""
    warehouse: str = Field(default="file://./warehouse")
    """URI of the folder below which tables are created."""

    def properties(self) -> dict[str, str]:
        """Properties for pyiceberg's ``load_catalog``, and for anyone who asks the relay."""
        return {"type": "sql", "uri": self.uri, "warehouse": self.warehouse}

    def load(self) -> Catalog:
        """Open the catalog; creates its two tables in an empty database."""
        return load_catalog(self.name, **self.properties())
