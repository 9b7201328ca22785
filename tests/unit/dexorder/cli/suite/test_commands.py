"""Commands status, doctor and up; the supervisor has tests of its own."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dexorder.cli.suite import doctor
from dexorder.cli.suite.findings import Finding
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.state import PartState, SuiteState, register, write_state
from tests.fakes.relay_server import FakeRelay, Notify, ended, relay_info, serving
from tests.rig.command import dexorder
from tests.rig.processes import free_ports


class Healthz(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthz) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def own_registry(tmp_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_dir / "registry"))
    monkeypatch.delenv("DEXORDER_DIR", raising=False)
    monkeypatch.delenv("DEXORDER_RELAY", raising=False)


def write(directory: Path, *, supervisor: int, **parts: PartState) -> None:
    write_state(directory, SuiteState(supervisor, "now", "127.0.0.1:20000", parts))


def part(port: int, pid: int | None, **more: object) -> PartState:
    return PartState(f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", pid=pid, **more)  # type: ignore[arg-type]


def test_suite_is_ready_if_all_parts_answer(tmp_dir: Path, answering: int) -> None:
    write(tmp_dir, supervisor=os.getpid(), sim=part(answering, os.getpid(), restarts=2))
    register(20_000, tmp_dir)
    for where in (["--dir", str(tmp_dir)], ["--relay", "127.0.0.1:20000"]):
        result = dexorder("status", "--json", *where)
        found = json.loads(result.stdout)
        assert result.exit_code == 0 and found["ready"]
        assert found["parts"]["sim"]["pid"] == os.getpid()
        assert found["parts"]["sim"]["detail"] == "restarted 2 times"
    assert dexorder("status", "--dir", str(tmp_dir)).stdout.split().count("yes") == 1


def test_status_shows_the_versions_of_parts_that_tell_them(tmp_dir: Path, answering: int) -> None:
    fake = FakeRelay({}, ended(Notify.OK), info=relay_info("0.0.7"))
    with serving(fake):
        relay = PartState(fake.address, f"grpc://{fake.address}", pid=os.getpid())
        gone = PartState(fake.address, f"grpc://{fake.address}", pid=None)
        write(tmp_dir, supervisor=os.getpid(), sim=part(answering, os.getpid()), relay=relay, gateway=gone)
        parts = json.loads(dexorder("status", "--json", "--dir", str(tmp_dir)).stdout)["parts"]
        assert {name: each["version"] for name, each in parts.items()} == {
            "sim": None,
            "relay": "0.0.7",
            "gateway": None,
        }
        assert "0.0.7" in dexorder("status", "--dir", str(tmp_dir)).stdout
        fake.missing_calls = {"GetServerInfo"}
        parts = json.loads(dexorder("status", "--json", "--dir", str(tmp_dir)).stdout)["parts"]
        assert parts["relay"]["version"] is None


def test_suite_is_not_ready_if_one_part_is_not(tmp_dir: Path, answering: int) -> None:
    dead = part(free_ports(1)[0], None, state="failing", detail="ended with exit code 3")
    write(tmp_dir, supervisor=os.getpid(), sim=part(answering, os.getpid()), spark=dead)
    result = dexorder("status", "--json", "--dir", str(tmp_dir))
    found = json.loads(result.stdout)["parts"]
    assert result.exit_code == 1
    assert found["sim"]["ready"] and not found["spark"]["ready"]
    assert found["spark"]["detail"] == "ended with exit code 3; fails repeatedly"


def test_another_process_at_the_address_of_a_part_is_not_the_part(tmp_dir: Path, answering: int) -> None:
    write(tmp_dir, supervisor=os.getpid(), sim=part(answering, None))
    assert dexorder("status", "--dir", str(tmp_dir)).exit_code == 1


def test_suite_without_supervisor_is_not_ready(tmp_dir: Path, answering: int) -> None:
    write(tmp_dir, supervisor=2**22 + 1, sim=part(answering, os.getpid()))
    result = dexorder("status", "--dir", str(tmp_dir))
    assert result.exit_code == 1 and "is not running" in result.stderr


def test_no_suite_is_one_line(tmp_dir: Path) -> None:
    result = dexorder("status")
    assert result.exit_code == 1
    assert result.stderr.startswith("dexorder: no suite is running; start one")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "relay,web"], "'web' is not a part of the suite"),
        (["--base-port", "80"], "base port 80 is not within"),
        (["--recorded", "nothing.csv=BTC/USDT"], "nothing.csv does not exist"),
        (["--only", "kafka", "--kafka", "a:1"], "leave no part"),
    ],
)
def test_up_refuses_invalid_options(tmp_dir: Path, arguments: list[str], message: str) -> None:
    result = dexorder("up", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_dir / "dexorder-data").exists()


def test_doctor_says_what_to_do(tmp_dir: Path, monkeypatch: pytest.MonkeyPatch, answering: int) -> None:
    monkeypatch.setenv("DEXORDER_CACHE", str(tmp_dir / "empty"))
    monkeypatch.setattr(doctor, "MIN_FREE_GIB", 1e9)
    found = {f["name"]: f for f in json.loads(dexorder("doctor", "--json").stdout)}
    assert not found["jars spark"]["ok"] and "dexorder.setup fetch spark" in found["jars spark"]["detail"]
    assert not found["disk"]["ok"] and "free some space" in found["disk"]["detail"]
    assert dexorder("doctor").exit_code == 1
    (ports,) = doctor._ports(SuiteOptions(tmp_dir, Ports(sim=answering)))
    assert not ports.ok and f"{answering} (sim)" in ports.detail and "--base-port" in ports.detail
    write(tmp_dir, supervisor=os.getpid())
    (ports,) = doctor._ports(SuiteOptions(tmp_dir, Ports(sim=answering)))
    assert ports.ok and "in use by the suite" in ports.detail
    elsewhere = SuiteOptions(tmp_dir / "elsewhere", Ports(sim=answering))
    (ports,) = doctor._ports(elsewhere)
    assert not ports.ok
    register(elsewhere.ports.relay, tmp_dir)
    (ports,) = doctor._ports(elsewhere)
    assert ports.ok and f"in use by the suite that runs in {tmp_dir} " in ports.detail


def test_doctor_reads_every_setting(tmp_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings() -> Finding:
        (found,) = doctor._settings(SuiteOptions(tmp_dir, Ports()))
        return found

    for name in [name for name in os.environ if name.startswith("DEXORDER_")]:
        monkeypatch.delenv(name)
    assert settings() == Finding("settings", True, "0 DEXORDER_ variables are set, all are valid")
    monkeypatch.setenv("DEXORDER_CHANNEL_TLS_CA", str(tmp_dir / "none.pem"))
    assert not settings().ok and "none.pem" in settings().detail
    monkeypatch.setenv("DEXORDER_RELAY_LEASE_SECONDS", "soon")
    monkeypatch.setenv("DEXORDER_CATALOG_TYPE", "paper")
    assert "DEXORDER_RELAY_LEASE_SECONDS" in settings().detail and "DEXORDER_CATALOG_TYPE" in settings().detail


def test_serve_checks_the_settings_of_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DEXORDER_")]:
        monkeypatch.delenv(name)
    valid = dexorder("serve", "relay", "--check")
    assert (valid.exit_code, valid.stdout) == (0, "the settings of the relay are valid\n")
    monkeypatch.setenv("DEXORDER_RELAY_LEASE_SECONDS", "soon")
    wrong = dexorder("serve", "relay", "--check")
    assert wrong.exit_code == 1 and "DEXORDER_RELAY_LEASE_SECONDS" in wrong.stderr
    assert dexorder("serve", "ingestor", "--check").exit_code == 0
    assert dexorder("serve", "nothing", "--check").exit_code == 2


def test_serve_gives_the_gateway_kafka_pixys_own_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DEXORDER_")]:
        monkeypatch.delenv(name)
    valid = dexorder("serve", "gateway", "-kafkaPeers=host:9092", "--check", "-tcpAddr", "127.0.0.1:1", "-tls")
    assert (valid.exit_code, valid.stdout) == (0, "the settings of the gateway are valid\n")
    wrong = dexorder("serve", "gateway", "-grpcAddr", "0.0.0.0:19091", "--check")
    assert wrong.exit_code == 1 and "0.0.0.0:19091" in wrong.stderr
    unknown = dexorder("serve", "gateway", "-kafkaPeer", "host:9092", "--check")
    assert unknown.exit_code == 1 and "'--kafkaPeer' is not a flag of Kafka-Pixy" in unknown.stderr
    other = dexorder("serve", "relay", "-tls", "--check")
    assert other.exit_code == 2 and "the relay takes no '--tls'" in other.stderr
    assert "Kafka-Pixy" in dexorder("serve", "-h").stdout


def test_doctor_checks_limits_and_the_state_folder(tmp_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_OPEN_FILES", 2**62)
    (files,) = doctor._limits(SuiteOptions(tmp_dir, Ports()))
    assert files.ok or "ulimit -n" in files.detail
    (tmp_dir / "file").touch(0o400)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_dir / "file"))
    (state,) = doctor._state(SuiteOptions(tmp_dir, Ports()))
    assert not state.ok and "XDG_STATE_HOME" in state.detail


def test_doctor_requires_the_jars_of_the_configured_catalog(tmp_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_CACHE", str(tmp_dir / "empty"))
    assert "jars production" not in {f.name for f in doctor._jars(SuiteOptions(tmp_dir, Ports()))}
    monkeypatch.setenv("DEXORDER_CATALOG_URI", "postgresql://db/iceberg")
    assert "jars production" in {f.name for f in doctor._jars(SuiteOptions(tmp_dir, Ports()))}
