import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dexorder.errors import SuiteFailed
from dexorder.setup.config import SetupError
from dexorder.supervisor import prepare
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder_common.exchanges import load_exchanges
from tests.paths import EXCHANGES, ROOT


def test_a_shipped_exchanges_file_has_a_name(tmp_path: Path) -> None:
    prepare.write_exchanges(Path("binance"), SuiteOptions(tmp_path))
    assert list(load_exchanges(tmp_path / "exchanges.yaml")) == ["BINANCE"]


def test_sim_gets_the_address_of_the_running_exchange(tmp_path: Path) -> None:
    options = SuiteOptions(tmp_path, Ports.from_base(20_000))
    prepare.write_exchanges(None, options)
    venue = load_exchanges(tmp_path / "exchanges.yaml")["SIM"]
    assert (venue.rest_url, venue.ws_url) == ("http://127.0.0.1:20008", "ws://127.0.0.1:20008")


def test_files_of_days_of_sim_are_at_its_address_too(tmp_path: Path) -> None:
    file = tmp_path / "exchanges.yaml"
    file.write_text((EXCHANGES / "sim.yaml").read_text() + "    archive: http://127.0.0.1:9000\n")
    prepare.write_exchanges(file, SuiteOptions(tmp_path, Ports.from_base(20_000)))
    assert load_exchanges(file)["SIM"].archive == "http://127.0.0.1:20008"


def test_every_dialect_of_sim_gets_the_address(tmp_path: Path) -> None:
    file = ROOT / "tests/fakes/exchange/sim-kraken.yaml"
    prepare.write_exchanges(file, SuiteOptions(tmp_path, Ports.from_base(20_000)))
    venues = load_exchanges(tmp_path / "exchanges.yaml")
    assert {name: venue.rest_url for name, venue in venues.items()} == {
        "SIM": "http://127.0.0.1:20008",
        "SIMKRAKEN": "http://127.0.0.1:20008",
    }


def test_other_venues_are_unchanged(tmp_path: Path) -> None:
    prepare.write_exchanges(EXCHANGES / "binance.yaml", SuiteOptions(tmp_path))
    written: Any = yaml.safe_load((tmp_path / "exchanges.yaml").read_text())
    assert written == yaml.safe_load((EXCHANGES / "binance.yaml").read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [("exchanges: {X: {ccxt: nowhere}}", "nowhere"), ("exchanges: {}", "exchanges"), ("a: [", "not YAML")],
)
def test_invalid_exchanges_file_is_an_error_at_start(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SuiteFailed, match=message):
        prepare.write_exchanges(file, SuiteOptions(tmp_path))
    with pytest.raises(SuiteFailed, match=r"none.yaml' is neither a file nor one of binance, sim$"):
        prepare.write_exchanges(tmp_path / "none.yaml", SuiteOptions(tmp_path))


async def test_error_names_a_port_in_use_and_its_part() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        options = SuiteOptions(Path("/nowhere"), Ports(broker=port), only=("relay",))
        assert ("relay", "broker", port) in prepare.ports_in_use(options)
        options = SuiteOptions(Path("/nowhere"), Ports(sim=port), only=("sim",))
        with pytest.raises(SuiteFailed, match=rf"port {port} \(sim\) is in use: .*--base-port"):
            await prepare.ports_free(options, timeout_s=0)
    await prepare.ports_free(options, timeout_s=0)


def test_folder_has_one_suite(tmp_path: Path) -> None:
    with (
        prepare.suite_lock(tmp_path / "new"),
        pytest.raises(SuiteFailed, match=r"in use by another `dexorder up`, process \d+"),
        prepare.suite_lock(tmp_path / "new"),
    ):
        pass
    with prepare.suite_lock(tmp_path / "new"):
        pass


def test_recorded_files_are_absolute_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a=b.csv").touch()
    monkeypatch.chdir(tmp_path)
    assert prepare.recorded_entries(["a=b.csv=BTC/USDT"]) == (f"{tmp_path}/a=b.csv=BTC/USDT",)
    for wrong, message in (
        ("a=b.csv", "does not exist"),
        ("BTC", "is not FILE=SYMBOL"),
        ("x.csv=A/B", "x.csv does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare.recorded_entries([wrong])


def test_missing_jars_are_downloaded_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_CACHE", str(tmp_path))
    notes: list[str] = []
    assert prepare.java_and_jars(SuiteOptions(tmp_path, only=("relay", "sim")), notes.append) == {}
    assert notes == []

    def no_network(name: str, java: object, note: Callable[[str], None]) -> Path:
        note(f"jars {name}: fetching")
        raise SetupError("the network is down")

    monkeypatch.setattr(prepare, "fetch", no_network)
    with pytest.raises(SuiteFailed, match="the network is down"):
        prepare.java_and_jars(SuiteOptions(tmp_path, only=("spark",)), notes.append)
    assert notes == ["jars spark: fetching"]


def test_environment_may_name_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare.external_catalog() is None
    monkeypatch.setenv("DEXORDER_CATALOG_URI", "postgresql://me@db/lake")
    monkeypatch.setenv("DEXORDER_CATALOG_PASSWORD", "secret")
    catalog = prepare.external_catalog()
    assert catalog is not None and catalog.jar_sets == ("spark", "production")
    monkeypatch.setenv("DEXORDER_CATALOG_PROPERTIES", '{"s3.secret-access-key": secret}')
    with pytest.raises(SuiteFailed, match=r"^bad settings\n  DEXORDER_CATALOG_PROPERTIES: .*not JSON") as failure:
        prepare.external_catalog()
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("name", ["a#b", "50%", "what?"])
def test_a_folder_that_iceberg_can_not_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SuiteFailed, match="tables can't be in a folder"), prepare.suite_lock(tmp_path / name):
        pass
    assert not (tmp_path / name).exists()


def test_a_refused_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SuiteFailed, match="a port"), prepare.suite_lock(tmp_path / "new"):
        raise SuiteFailed("a port is in use")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    for folder in ("mine", "used"):
        with pytest.raises(SuiteFailed, match="a part"), prepare.suite_lock(tmp_path / folder):
            if folder == "used":
                (tmp_path / folder / "relay.db").touch()
            raise SuiteFailed("a part ends")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine", "used"]
