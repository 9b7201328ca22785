"""Failures as a dataplane sees them: an eot while Kafka is unavailable, an end where only a restart helps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.numaflow.vertex import StartUdsource, Udsource
from tests.integration.services.udsource.client import produce
from tests.peers.numaflow_reader import Batch, NumaflowReader, Refused
from tests.rig.processes import free_ports, until

pytestmark = [pytest.mark.smoke, pytest.mark.kafka, pytest.mark.timeout(600)]
MakeTopic = Callable[[int], str]
RECORDS = 20


def test_unreadable_kafka_is_reported(start_udsource: StartUdsource) -> None:
    udsource = start_udsource("any-topic", kafka=f"127.0.0.1:{free_ports(1)[0]}")
    reader = udsource.connect()
    assert reader.pending() == -1
    assert not reader.ready()

    def batch() -> Batch:
        found = reader.read(10, 50)
        assert found.records == []
        return found

    until(lambda: batch().code == "FAILURE")
    failed = batch()
    assert failed.error == "OTHER" and "Kafka at 127.0.0.1" in failed.msg
    with pytest.raises(Refused) as caught:
        reader.partitions()
    assert caught.value.code == "UNAVAILABLE"
    assert udsource.stop() == 0


@pytest.fixture
def start_broken(
    start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Udsource]:
    """Start udsource with a bug, over a topic with records."""

    def start(where: str, **given: float) -> Udsource:
        topic = kafka_topic(1)
        produce(kafka, topic, [(0, b"%d" % number) for number in range(RECORDS)])
        monkeypatch.setenv("DEXORDER_TEST_BROKEN", where)
        return start_udsource(topic, module="tests.conformance.numaflow.broken_udsource", **given)

    return start


def fails(call: Callable[[], object], method: str) -> None:
    """Check that the call is answered with INTERNAL, in a form that the dataplane files under the container's name."""
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.code == "INTERNAL"
    text = f"UDF_EXECUTION_ERROR(udsource): source.v1.Source/{method} raised ZeroDivisionError: a bug"
    assert caught.value.details.startswith(text)


def goes_on(start_udsource: StartUdsource, broken: Udsource) -> None:
    """Check that the process started in its place has every record."""
    reader: NumaflowReader = start_udsource(broken.topic).connect()
    assert sorted(int(record.payload) for record in reader.drain()) == list(range(RECORDS))


def test_bug_in_a_read_ends_in_a_restart(start_udsource: StartUdsource, start_broken: Callable[..., Udsource]) -> None:
    broken = start_broken("read")
    reader = broken.connect()
    fails(lambda: reader.read(10), "ReadFn")
    assert broken.ended() == 1
    assert not broken.info.exists()
    goes_on(start_udsource, broken)


def test_bug_in_an_ack_ends_in_a_restart(start_udsource: StartUdsource, start_broken: Callable[..., Udsource]) -> None:
    broken = start_broken("ack", drain_seconds=1)
    reader = broken.connect()
    places = [record.place for record in reader.collect(10)]
    fails(lambda: reader.ack(places), "AckFn")
    assert broken.ended() == 1
    goes_on(start_udsource, broken)


def test_bug_in_the_background_ends_in_a_restart(
    start_udsource: StartUdsource, start_broken: Callable[..., Udsource]
) -> None:
    broken = start_broken("monitor", drain_seconds=1)
    broken.connect().ack([])  # both handshakes are made by then; only behind this answer it breaks
    assert broken.ended() == 1
    goes_on(start_udsource, broken)


@pytest.mark.nightly
def test_bug_ends_the_process_even_if_a_thread_hangs(
    start_udsource: StartUdsource, start_broken: Callable[..., Udsource]
) -> None:
    broken = start_broken("stuck", drain_seconds=0)
    reader = broken.connect()
    fails(lambda: reader.read(10), "ReadFn")
    assert broken.ended() == 1
    goes_on(start_udsource, broken)
