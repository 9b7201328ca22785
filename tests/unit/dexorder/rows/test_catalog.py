from pathlib import Path

import pytest

from dexorder.errors import CatalogError
from dexorder.rows.catalog import catalog_properties, open_catalog
from tests.rig.processes import free_ports

ANNOUNCED = {"type": "sql", "uri": "postgresql://me@db/lake", "warehouse": "s3://lake", "s3.region": "eu-west-1"}


def test_secrets_are_added_to_the_announced_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ANNOUNCED | {"uri": "postgresql+pg8000://me@db/lake"}
    assert catalog_properties("lake", ANNOUNCED) == ("lake", plain)
    monkeypatch.setenv("DEXORDER_CATALOG_PASSWORD", "secret")
    monkeypatch.setenv("DEXORDER_CATALOG_PROPERTIES", '{"s3.secret-access-key": "key"}')
    changed = {"uri": "postgresql+pg8000://me:secret@db/lake", "s3.secret-access-key": "key"}
    assert catalog_properties("lake", ANNOUNCED) == ("lake", ANNOUNCED | changed)


def test_invalid_variable_is_a_catalog_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_CATALOG_TYPE", "glue")
    with pytest.raises(CatalogError, match="DEXORDER_CATALOG_TYPE"):
        catalog_properties("lake", ANNOUNCED)


def test_unreachable_database_names_the_settings_for_secrets(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    properties = {"type": "sql", "uri": f"postgresql://me:secret@127.0.0.1:{port}/lake", "warehouse": "s3://lake"}
    with pytest.raises(
        CatalogError, match=r"catalog lake can't be opened: .* set DEXORDER_CATALOG_PASSWORD"
    ) as failure:
        open_catalog("lake", properties)
    assert "secret" not in str(failure.value)
