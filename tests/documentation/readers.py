"""What reads the fragments of settings and files that pages show; each raises if it can't."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dexorder.udf.functions import FUNCTIONS
from dexorder_common.exchanges import load_exchanges
from dexorder_common.messaging.curve import make_keys, read_public_key
from dexorder_common.rpc.identity import read_callers
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.ingress.containers import read_containers
from dexorder_gateway.kafkapixy.yaml_settings import read_pixy_file
from dexorder_gateway.pixy_flags import PixyFlags
from dexorder_spark.udf.programs import read_declared
from tests.fixtures_tls import Authority
from tests.paths import ROOT
from tests.smoke.test_tracing import TREE


def written(text: str, folder: Path) -> Path:
    """Return a file with the text."""
    file = folder / "block"
    file.write_text(text)
    return file


def callers(text: str, folder: Path) -> None:
    """Read callers with tokens and roles."""
    found = read_callers(written(text, folder))
    assert found.by_token("hello") is found.by_name("desk-1") is not None
    assert found.by_token("bar") is found.by_token("baz") is found.by_name("ingestor-a") is not None


def callers_of_a_mesh(text: str, folder: Path) -> None:
    """Read callers with their names in a mesh."""
    found = read_callers(written(text, folder))
    assert found.by_uri("spiffe://cluster.local/ns/quant/sa/desk") is found.by_name("desk-1") is not None
    assert found.by_uri("spiffe://cluster.local/ns/dexorder/sa/ingestor") is found.by_name("ingestor-a") is not None


def containers(text: str, folder: Path) -> None:
    """Read containers with a key in place of the words."""
    key = read_public_key(make_keys(folder, "alice-bot")[1]).decode()
    found = read_containers(written(text.replace("40 characters of Z85", key), folder))
    assert found.by_key(key) is not None


def exchanges(text: str, folder: Path) -> None:
    """Read an exchanges file."""
    (found,) = load_exchanges(written(text, folder)).values()
    assert (found.rate_per_second, found.burst) == (10, 1)


def kafka_pixy(text: str, folder: Path) -> None:
    """Read a file of Kafka-Pixy, with certificates that exist here."""
    authority = Authority(folder / "tls")
    pair = authority.server()
    files = {
        "server.crt": pair.certificate,
        "server.key": pair.key,
        "ca.crt": authority.ca,
        "kafka-ca.crt": authority.ca,
    }
    for name, file in files.items():
        text = text.replace(f"/etc/tls/{name}", str(file))
    file = written(text, folder)
    assert set(read_pixy_file(file, PixyFlags()).proxies) == {"main", "archive"}
    assert GatewaySettings(pixy_config=file, allow_insecure=True).listen == "0.0.0.0:19091"


def kafka_options(text: str, folder: Path) -> None:
    """Read settings of Kafka."""
    settings = dict(re.sub(r" +# .*", "", line).split("=", 1) for line in text.splitlines())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        found = GatewaySettings()
    assert found.kafka == "kafka-1:9092,kafka-2:9092" and found.kafka_options["security.protocol"] == "SASL_SSL"


def kapacitor(text: str, folder: Path) -> None:
    """Read Kapacitor's configuration of a function that is shipped, or of a program."""
    ((name, entry),) = tomllib.loads(text)["udf"]["functions"].items()
    assert entry["args"] == ["-u", f"/opt/{name}.py"] or (entry["args"] == ["udf", "serve", name] and name in FUNCTIONS)


def program(text: str, folder: Path) -> None:
    """Run a Python program; it prints what its lines ``# prints ...`` say."""
    run = subprocess.run(
        [sys.executable, written(text, folder)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == re.findall(r"^# prints (.*)$", text, re.MULTILINE)


def trace(text: str, folder: Path) -> None:
    """Compare a diagram of spans with those that `tests.smoke.test_tracing` expects of a request."""
    drawn = {re.split(r" {2,}", re.sub(r"^[│├└─ ]+", "", line))[0] for line in text.splitlines()}
    made = {path[-1].partition(": ")[2].removeprefix("dexorder.relay.v1.") for path in TREE}
    assert drawn <= made, drawn - made
    assert made - drawn == {"HistoryService/GetRequest", "RowsService/GetCatalog"}


def udfs(text: str, folder: Path) -> None:
    """Read a file of UDFs."""
    assert set(read_declared(written(text, folder))) in ({"average", "spikes"}, {"spread"})
