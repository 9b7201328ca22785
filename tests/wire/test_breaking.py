"""``buf breaking`` refuses to lose what a release has promised: each of twenty deletions and changes, one by one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

BASELINE = ROOT / "tests" / "wire" / "baseline"
RELAY, EVENTS, UDF = "dexorder/relay/v1", "dexorder/events/v1", "dexorder/udf/v1"
LOSSES = {
    "a file": (f"{RELAY}/rows_service.proto", r".*", ""),
    "a service": (f"{RELAY}/trigger_service.proto", r"\nservice TriggerService \{.*?\n\}\n", "\n"),
    "an RPC": (f"{RELAY}/history_service.proto", r"\n  rpc CancelRequest\(.*?\n  \}\n", "\n"),
    "an RPC of ingestors": (f"{RELAY}/ingestor_service.proto", r"\n  rpc ReportPage\(.*?\n  \}\n", "\n"),
    "an RPC of events": (f"{EVENTS}/event_service.proto", r"\n  rpc AckEvent\(.*?\n  \}\n", "\n"),
    "an RPC of UDFs": (f"{UDF}/udf_registry_service.proto", r"\n  rpc StopUdf\(.*?\n  \}\n", "\n"),
    "an RPC's stream": (f"{RELAY}/coverage_service.proto", r"returns \(stream StreamCov", "returns (StreamCov"),
    "an RPC's request": (
        f"{RELAY}/history_service.proto",
        r"GetRequest\(GetRequestRequest",
        "GetRequest(CancelRequestRequest",
    ),
    "an RPC's idempotency": (f"{RELAY}/history_service.proto", r"    option idempotency_level = IDEMPOTENT;\n", ""),
    "a field": (f"{RELAY}/history_service.proto", r"\n  string notification_topic = 9;", ""),
    "a field of a shared message": (f"{RELAY}/common.proto", r"\n  uint64 end_ns = 2;", ""),
    "a field of market data": ("dexorder/market/v1/ohlcv.proto", r"\n  double volume = 6;", ""),
    "a field's name": (f"{RELAY}/coverage_service.proto", r"bool detail = 4", "bool details = 4"),
    "a field's number": (f"{RELAY}/coverage_service.proto", r"bool detail = 4", "bool detail = 14"),
    "a field's type": (f"{RELAY}/common.proto", r"uint64 start_ns = 1", "int64 start_ns = 1"),
    "a field's presence": (f"{RELAY}/common.proto", r"optional uint32 period_seconds", "uint32 period_seconds"),
    "a member of a oneof": (f"{RELAY}/history_service.proto", r"\n    StreamStart reset = 2;", ""),
    "an enum": (f"{RELAY}/operator_service.proto", r"ControlOutcome outcome = 2", "uint32 outcome = 2"),
    "a value of an enum": (f"{RELAY}/history_service.proto", r"\n  REQUEST_STATE_FINISHED = 3;", ""),
    "a field of the given protocol": ("dexorder/ingest/v1/ingest.proto", r"\n  string iceberg_table = 11;", ""),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_loss_is_refused(tmp_path: Path, what: str) -> None:
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    name, pattern, replacement = LOSSES[what]
    path = tmp_path / "protos" / name
    text = path.read_text()
    changed = re.sub(pattern, replacement, text, count=1, flags=re.S)
    assert changed != text, "the proto has changed: choose another thing to lose"
    if changed:
        path.write_text(changed)
    else:
        path.unlink()
    found = subprocess.run(
        ["buf", "breaking", "--against", str(BASELINE)], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 100 and found.stdout, found.stderr


def test_the_protos_break_nothing() -> None:
    subprocess.run(["buf", "breaking", "--against", str(BASELINE)], cwd=ROOT, check=True)
