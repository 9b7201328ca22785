"""What peers of the given protocols send and expect, by literal bytes and by field numbers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dexorder_protos.source.v1 import source_pb2
from dexorder_protos.udf import udf_pb2
from tests.paths import ROOT


def test_a_batch_of_acks_arrives_whole() -> None:
    one, two = b"\x0a\x05\x0a\x013\x10\x03", b"\x0a\x05\x0a\x012\x10\x02"
    request = source_pb2.AckRequest.FromString(b"\x0a\x0e" + one + two).request
    assert [(o.offset, o.partition_id) for o in request.offsets] == [(b"3", 3), (b"2", 2)]


def test_an_ack_of_the_given_singular_form_is_a_list_of_one() -> None:
    request = source_pb2.AckRequest.FromString(b"\x0a\x07\x0a\x05\x0a\x013\x10\x03").request
    assert [(o.offset, o.partition_id) for o in request.offsets] == [(b"3", 3)]


def test_result_headers_are_a_map_of_text() -> None:
    result = source_pb2.ReadResponse.Result.FromString(b"\x2a\x06\x0a\x01k\x12\x01v")
    assert dict(result.headers) == {"k": "v"}


def test_kapacitors_newer_fields_are_there() -> None:
    numbers = {
        (message, field.name): field.number
        for message in ("InitRequest", "BeginBatch", "Point", "EndBatch")
        for field in udf_pb2.DESCRIPTOR.message_types_by_name[message].fields
    }
    assert {
        ("InitRequest", "taskID"): 2,
        ("InitRequest", "nodeID"): 3,
        ("BeginBatch", "size"): 4,
        ("BeginBatch", "byName"): 5,
        ("Point", "byName"): 11,
        ("Point", "fieldsBool"): 12,
        ("EndBatch", "byName"): 5,
    }.items() <= numbers.items()


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("dexorder/ingest/v1/ingest.proto", "string ticker = 3;", "string ticker = 33;"),
        ("dexorder/events/v1/user_events.proto", "CRITICAL = 2;", "CRITICAL = 3;"),
        ("vendor/udf/udf.proto", "int64 tmax = 3;", "int32 tmax = 3;"),
        ("vendor/kafkapixy/kafkapixy.proto", "bytes key_value = 3;", "string key_value = 3;"),
    ],
)
def test_a_change_of_a_given_message_is_noticed(tmp_path: Path, path: str, old: str, new: str) -> None:
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    changed = tmp_path / "protos" / path
    assert old in changed.read_text()
    changed.write_text(changed.read_text().replace(old, new))
    baseline = str(ROOT / "tests" / "wire" / "baseline")
    run = subprocess.run(
        [str(Path(sys.executable).parent / "buf"), "breaking", "--against", baseline],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 100, run.stdout + run.stderr
    assert "AckRequest" not in run.stdout
