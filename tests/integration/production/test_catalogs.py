"""The whole suite with external catalogs: PostgreSQL with S3, and a REST server with S3."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from dexorder import Client
from dexorder.setup import jars, java
from tests.integration.production.chain import check_histories, told
from tests.integration.production.servers import BUCKET, postgres, production_environment, rest_catalog, s3
from tests.rig.suite import running_suite


@pytest.fixture(scope="module", autouse=True)
def production_jars() -> Path:
    return jars.fetch("production", java.ensure_java, print)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_suite_with_postgresql_s3_and_an_external_kafka(
    tmp_path: Path, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres() as database, s3(tmp_path) as store:
        environment = production_environment(database, store)
        with running_suite(tmp_path / "suite", "--kafka", kafka, **environment) as suite:
            with Client(suite.relay) as client:
                name, announced = client.catalog()
            assert name == "production"
            assert announced == {
                "type": "sql",
                "uri": database.uri.replace("postgresql", "postgresql+pg8000", 1),
                "warehouse": f"s3://{BUCKET}/warehouse",
                **store.access,
            }
            # the relay sends a client all properties but the secrets
            monkeypatch.setenv("DEXORDER_CATALOG_PASSWORD", database.password)
            monkeypatch.setenv("DEXORDER_CATALOG_PROPERTIES", json.dumps(store.keys))
            check_histories(suite)
            assert not (suite.directory / "catalog.db").exists() and not (suite.directory / "warehouse").exists()
            secrets = [database.password, quote(database.password, safe=""), *store.keys.values()]
            assert told(suite.directory, secrets) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_suite_with_a_rest_catalog_and_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3(tmp_path) as store, rest_catalog(tmp_path, store) as uri:
        environment = {
            "DEXORDER_CATALOG_TYPE": "rest",
            "DEXORDER_CATALOG_URI": uri,
            "DEXORDER_CATALOG_WAREHOUSE": BUCKET,
            "DEXORDER_CATALOG_PROPERTIES": json.dumps(store.access | store.keys),
        }
        with running_suite(tmp_path / "suite", **environment) as suite:
            monkeypatch.setenv("DEXORDER_CATALOG_PROPERTIES", json.dumps(store.keys))
            check_histories(suite)
            assert told(suite.directory, [store.keys["s3.access-key-id"]]) == []
