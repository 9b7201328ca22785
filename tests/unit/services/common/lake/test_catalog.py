import ssl
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from dexorder_common.config import BadSettings, read_settings
from dexorder_common.lake.catalog import CatalogSettings, tls_context, with_driver, with_password
from dexorder_common.lake.sql_catalog import LakeCatalog

SECRET = "s3cr3t"
KEYS = {"s3.endpoint": "http://s3:9000", "s3.access-key-id": "id" + SECRET, "s3.secret-access-key": SECRET}


@pytest.mark.parametrize(
    "settings",
    [
        CatalogSettings(uri=f"postgresql://me:{SECRET}@db:5433/lake", warehouse="s3://lake/w", more=KEYS),
        CatalogSettings(uri=f"postgresql+psycopg2://db/lake?user=me&password={SECRET}", warehouse="s3://lake/w"),
        CatalogSettings(uri="postgresql://me@db/lake", password=SECRET),  # type: ignore[arg-type]
        CatalogSettings(type="rest", uri=f"https://me:{SECRET}@lake/api?token={SECRET}", more={"token": SECRET}),
        CatalogSettings(type="rest", uri="https://lake", more={"credential": f"id:{SECRET}", "header.X-Key": SECRET}),
        CatalogSettings(type="rest", uri="https://lake", more={"a-name-of-tomorrow": SECRET}),
        CatalogSettings(more={"s3.proxy-uri": f"http://me:{SECRET}@proxy:3128"}),
    ],
)
def test_announced_and_printed_settings_have_no_secrets(settings: CatalogSettings) -> None:
    assert SECRET in str(settings.properties())
    assert SECRET not in str(settings.public_properties()) + repr(settings) + str(settings)


def test_announced_properties_suffice_except_for_secrets() -> None:
    relay = CatalogSettings(
        uri=f"postgresql://me:{SECRET}@db:5433/lake?sslmode=verify-full&sslrootcert=ca.pem",
        warehouse="s3://lake/w",
        more={**KEYS, "s3.region": "eu-west-1"},
    )
    announced = relay.public_properties()
    assert announced == {
        "type": "sql",
        "uri": "postgresql://me@db:5433/lake?sslmode=verify-full&sslrootcert=ca.pem",
        "warehouse": "s3://lake/w",
        "s3.endpoint": "http://s3:9000",
        "s3.region": "eu-west-1",
    }
    own = CatalogSettings(password=SECRET, more={k: v for k, v in KEYS.items() if "key" in k})  # type: ignore[arg-type]
    assert own.over(announced) == relay.properties()


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_CATALOG_TYPE", "rest")
    monkeypatch.setenv("DEXORDER_CATALOG_URI", "https://lake/iceberg")
    monkeypatch.setenv("DEXORDER_CATALOG_PROPERTIES", '{"token": "t"}')
    assert CatalogSettings().properties() == {"type": "rest", "uri": "https://lake/iceberg", "token": "t"}
    assert CatalogSettings.local(Path("/d")).properties() == {
        "type": "sql",
        "uri": "sqlite:////d/catalog.db",
        "warehouse": "file:///d/warehouse",
    }


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TYPE", "glue", "'sql' or 'rest'"),
        ("PROPERTIES", f'{{"token": {SECRET}}}', "not JSON"),
        ("PROPERTIES", f'["{SECRET}"]', "valid dictionary"),
    ],
)
def test_invalid_variable_is_named_without_its_value(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"DEXORDER_CATALOG_{name}", value)
    with pytest.raises(BadSettings, match=rf"DEXORDER_CATALOG_{name}: .*{says}") as problem:
        read_settings(CatalogSettings)
    assert SECRET not in str(problem.value)


@pytest.mark.parametrize(
    ("settings", "sets"),
    [
        (CatalogSettings(uri="sqlite:////c.db", warehouse="file:///w"), ("spark",)),
        (CatalogSettings(uri="sqlite:////c.db", warehouse="s3://w"), ("spark", "production")),
        (CatalogSettings(uri="postgresql://db/lake", warehouse="file:///w"), ("spark", "production")),
        (CatalogSettings(type="rest", uri="https://lake"), ("spark", "production")),
    ],
)
def test_catalogs_other_than_sqlite_and_files_need_more_jars(settings: CatalogSettings, sets: tuple[str, ...]) -> None:
    assert settings.jar_sets == sets


def test_parts_that_start_at_the_same_time_may_all_create_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def late(name: str, **properties: str) -> object:
        opened.append(name)
        if len(opened) == 1:
            raise OperationalError("CREATE TABLE", None, Exception("table iceberg_tables already exists"))
        return LakeCatalog(name, **properties)

    monkeypatch.setattr("dexorder_common.lake.catalog.LakeCatalog", late)
    found = CatalogSettings.local(tmp_path).load()
    assert opened == ["dexorder", "dexorder"] and found.list_namespaces() == []
    found.close()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("postgresql://db/lake", "postgresql+pg8000://db/lake"),
        ("postgresql+psycopg2://db/lake", "postgresql+psycopg2://db/lake"),
        ("sqlite:////c.db", "sqlite:////c.db"),
    ],
)
def test_own_driver_is_used_if_none_is_named(given: str, found: str) -> None:
    assert with_driver(given) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("postgresql://me@db/lake", "postgresql://me:p%40ss@db/lake"),
        ("postgresql://me:own@db/lake", "postgresql://me:own@db/lake"),
        ("https://lake", "https://lake"),
    ],
)
def test_password_setting_is_used_if_the_uri_has_none(given: str, found: str) -> None:
    assert with_password(given, "p@ss") == found


@pytest.mark.parametrize(
    ("mode", "found"), [("disable", False), ("prefer", None), (None, None), ("require", True), ("verify-full", ssl)]
)
def test_tls_modes_are_those_of_libpq(mode: str | None, found: object) -> None:
    context = tls_context(mode, None)
    if found is ssl:
        assert isinstance(context, ssl.SSLContext) and context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
    else:
        assert context is found


def test_verify_ca_does_not_check_the_name_and_unknown_modes_are_refused() -> None:
    context = tls_context("verify-ca", "system")
    assert isinstance(context, ssl.SSLContext) and not context.check_hostname
    with pytest.raises(ValueError, match="sslmode 'full' is not one of"):
        tls_context("full", None)
