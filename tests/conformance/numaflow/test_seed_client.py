"""A client of the given contract, before batches: one offset for each ack, and no NackFn."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.conformance.numaflow.vertex import StartUdsource
from tests.integration.services.udsource.client import produce
from tests.paths import ROOT
from tests.rig.processes import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
MakeTopic = Callable[[int], str]
GIVEN = ROOT / "tests" / "wire" / "baseline" / "vendor"
RECORDS = 60


def given_messages(folder: Path) -> Callable[[str], Any]:
    """Return a function that finds the messages of the given file, compiled apart from ours."""
    compiled = folder / "given.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{GIVEN}", f"-I{files('grpc_tools') / '_proto'}"]
    command += ["--include_imports", f"--descriptor_set_out={compiled}", "source/v1/source.proto"]
    subprocess.run(command, check=True)
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return lambda name: GetMessageClass(pool.FindMessageTypeByName(f"source.v1.{name}"))


class Stream:
    """A bidirectional call: one request, then its answers."""

    def __init__(self, channel: grpc.Channel, method: str, response: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call: Any = channel.stream_stream(
            f"/source.v1.Source/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        self._answers: Iterator[Any] = call(iter(self._requests.get, None), timeout=300)

    def ask(self, request: Any) -> Any:
        self._requests.put(request)
        return self.next()

    def next(self) -> Any:
        return next(self._answers)

    def end(self) -> None:
        self._requests.put(None)


def test_every_ack_has_its_answer(
    start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = kafka_topic(2)
    produce(kafka, topic, [(number % 2, b"%d" % number) for number in range(RECORDS)])
    find = given_messages(tmp_path)
    read_request, ack_request, handshake = find("ReadRequest"), find("AckRequest"), find("Handshake")(sot=True)
    (request,) = ack_request.DESCRIPTOR.nested_types
    assert [field.name for field in request.fields] == ["offset"]
    udsource = start_udsource(topic)
    with grpc.insecure_channel(f"unix:{udsource.socket}") as channel:
        reads, acks = Stream(channel, "ReadFn", find("ReadResponse")), Stream(channel, "AckFn", find("AckResponse"))
        assert reads.ask(read_request(handshake=handshake)).handshake.sot
        assert acks.ask(ack_request(handshake=handshake)).handshake.sot
        found: list[bytes] = []
        while len(found) < RECORDS:
            response = reads.ask(read_request(request={"num_records": 25, "timeout_in_ms": 1_000}))
            batch = []
            while not response.status.eot:
                batch.append(response.result)
                response = reads.next()
            for result in batch:
                assert acks.ask(ack_request(request={"offset": result.offset})).result.HasField("success")
                found.append(result.payload)
        reads.end()
        acks.end()
        assert sorted(found, key=int) == [b"%d" % number for number in range(RECORDS)]
        until(lambda: [udsource.committed(partition) for partition in range(2)] == [RECORDS // 2] * 2)
