from dataclasses import fields
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from dexorder.supervisor.plan import OWNED, PARTS, STOP_ORDER, Part, Ports, SuiteOptions, parse_only, plan
from dexorder_common.lake.catalog import CatalogSettings

DIR = Path("/srv/suite")


def parts(**options: object) -> dict[str, Part]:
    asked = SuiteOptions(DIR, **options)  # type: ignore[arg-type]
    return {p.name: p for p in plan(asked, java={"JAVA_HOME": "/j", "PATH": "/j/bin"})}


IN_ORDER = (
    "relay",
    "udsource",
    "gateway",
    "kafka",
    "kafka_controller",
    "broker",
    "events_sub",
    "events_router",
    "sim",
    "web",
    "relay_metrics",
    "ingestor_metrics",
    "gateway_metrics",
    "udsource_metrics",
    "spark_metrics",
    "ingestor",
    "spark",
)


@pytest.mark.parametrize(("offset", "name"), list(enumerate(IN_ORDER)))
def test_base_port_starts_one_block(offset: int, name: str) -> None:
    assert getattr(Ports.from_base(20_000), name) == 20_000 + offset


def test_ports_are_distinct() -> None:
    for ports in (Ports(), Ports.from_base(1024)):
        numbers = [getattr(ports, field.name) for field in fields(ports)]
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("base", [-1, 0, 1023, 65_520, 70_000])
def test_a_block_that_does_not_fit_is_refused(base: int) -> None:
    with pytest.raises(ValueError, match=f"base port {base} is not within"):
        Ports.from_base(base)


def test_every_part_has_ports_and_a_stop_order() -> None:
    assert set(OWNED) == set(PARTS) == set(STOP_ORDER)


@pytest.mark.parametrize(
    ("part", "variable", "value"),
    [
        ("relay", "DEXORDER_RELAY_LISTEN", "127.0.0.1:20000"),
        ("relay", "DEXORDER_RELAY_BROKER_LISTEN", "tcp://127.0.0.1:20005"),
        ("relay", "DEXORDER_RELAY_DB", "/srv/suite/relay.db"),
        ("relay", "DEXORDER_RELAY_METRICS_LISTEN", "127.0.0.1:20010"),
        ("relay", "DEXORDER_CATALOG_URI", "sqlite:////srv/suite/catalog.db"),
        ("relay", "DEXORDER_CATALOG_WAREHOUSE", "file:///srv/suite/warehouse"),
        ("ingestor", "DEXORDER_INGESTOR_BROKER", "tcp://127.0.0.1:20005"),
        ("ingestor", "DEXORDER_INGESTOR_GATEWAY", "127.0.0.1:20002"),
        ("ingestor", "DEXORDER_INGESTOR_LISTEN", "127.0.0.1:20015"),
        ("ingestor", "DEXORDER_EXCHANGES", "/srv/suite/exchanges.yaml"),
        ("gateway", "DEXORDER_GATEWAY_KAFKA", "127.0.0.1:20003"),
        ("gateway", "DEXORDER_PIXY_CONFIG", ""),
        ("udsource", "DEXORDER_UDSOURCE_LISTEN", "127.0.0.1:20001"),
        ("udsource", "DEXORDER_UDSOURCE_METRICS_LISTEN", "127.0.0.1:20013"),
        ("spark", "DEXORDER_SPARK_SOURCE", "127.0.0.1:20001"),
        ("spark", "DEXORDER_CATALOG_TYPE", "sql"),
        ("spark", "JAVA_HOME", "/j"),
        ("sim", "DEXORDER_SIM_LISTEN", "127.0.0.1:20008"),
        ("sim", "DEXORDER_SIM_RECORDED", '["/a.parquet=BTC/USDT"]'),
    ],
)
def test_parts_receive_the_addresses_of_others(part: str, variable: str, value: str) -> None:
    made = parts(ports=Ports.from_base(20_000), recorded=("/a.parquet=BTC/USDT",))
    assert made[part].env[variable] == value


def test_part_waits_only_for_parts_of_its_suite() -> None:
    assert parts()["ingestor"].after == ("relay", "gateway", "sim")
    assert parts()["spark"].after == parts()["kafka"].after == ()
    assert parts(only=("ingestor", "relay"))["ingestor"].after == ("relay",)


def test_external_kafka_replaces_the_embedded_one() -> None:
    made = parts(kafka="broker.example:9092")
    assert "kafka" not in made and made["gateway"].after == ()
    assert made["udsource"].env["DEXORDER_UDSOURCE_KAFKA"] == "broker.example:9092"


def test_external_catalog_is_taken_from_the_environment() -> None:
    catalog = CatalogSettings(uri="postgresql://me:secret@db/lake", warehouse="s3://lake")
    made = parts(catalog=catalog)
    assert not [name for part in made.values() for name in part.env if name.startswith("DEXORDER_CATALOG")]
    assert "secret" not in str(SuiteOptions(DIR, catalog=catalog)) + str(
        SuiteOptions(DIR, catalog=catalog).catalog_properties()
    )


def test_health_address_matches_the_part() -> None:
    made = parts(ports=Ports.from_base(20_000))
    assert made["kafka"].health == "kafka://127.0.0.1:20003"
    assert made["sim"].health == "http://127.0.0.1:20008"
    assert made["spark"].health == "grpc://127.0.0.1:20016"


def test_only_accepts_known_names() -> None:
    assert parse_only("spark, relay") == ("spark", "relay")
    assert list(parts(only=("spark", "relay"))) == ["relay", "spark"]
    with pytest.raises(ValueError, match=r"'web' is not a part .* kafka, sim"):
        parse_only("relay,web")


@pytest.mark.parametrize(
    ("options", "health"),
    [
        ({}, "grpc://127.0.0.1:50053/KafkaPixy"),
        ({"kafka": "k:1"}, "grpc://127.0.0.1:50053/KafkaPixy"),
        ({"only": ("gateway",), "kafka": "k:1"}, "grpc://127.0.0.1:50053/KafkaPixy"),
        ({"only": ("gateway",)}, "grpc://127.0.0.1:50053"),
        ({"only": ("relay", "gateway")}, "grpc://127.0.0.1:50053"),
    ],
)
def test_gateway_is_ready_with_kafka_if_the_suite_has_one(options: dict[str, object], health: str) -> None:
    assert parts(**options)["gateway"].health == health


def test_tables_are_in_the_folder_even_if_its_name_has_a_space() -> None:
    asked = SuiteOptions(Path("/srv/a suite"))
    warehouse = asked.catalog_properties()["warehouse"]
    assert warehouse == CatalogSettings.local(asked.directory).warehouse == "file:///srv/a suite/warehouse"
    assert PyArrowFileIO.parse_location(warehouse) == ("file", "", "/srv/a suite/warehouse")
