"""Discovery of the source by a dataplane: the socket in the pod's volume and the server-info file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from dexorder_protos.source.v1 import source_pb2_grpc as rpc
from tests.conformance.numaflow.vertex import StartUdsource

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
MakeTopic = Callable[[int], str]


@pytest.mark.smoke
def test_socket_and_info_are_where_numaflow_looks_and_tcp_is_beside(
    start_udsource: StartUdsource, kafka_topic: MakeTopic, tmp_path: Path
) -> None:
    """Only the volume's folder is set, as in a pod by default. It holds the files of a killed process."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "sourcer-server-info").write_text('{"version": "of a killed process"}U+005C__END__')
    udsource = start_udsource(kafka_topic(1))
    reader = udsource.connect()
    assert reader.listened
    assert reader.info == {
        "protocol": "uds",
        "language": "python",
        "minimum_numaflow_version": "1.4.0-z",
        "version": "0.14.0",
        "metadata": {},
    }
    assert {path.name for path in udsource.socket.parent.iterdir()} == {"source.sock", "sourcer-server-info"}
    with grpc.insecure_channel(udsource.listens_at) as channel:
        rpc.SourceStub(channel).IsReady(Empty(), timeout=60)
    assert reader.close() == {"read": "OK", "ack": "OK"}
    assert udsource.stop() == 0
    assert not udsource.info.exists()
