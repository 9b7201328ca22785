"""With identity on, each role and each way to produce to the pipeline's topics and to others."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import yaml

from dexorder_common.rpc.identity import Role, token_hash
from dexorder_gateway.kafkapixy.service import PIPELINE_TOPICS
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2 as record_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import GatewayThread, MakeTopic, StartGateway

pytestmark = pytest.mark.kafka
CODE = grpc.StatusCode
WAYS = ("sync", "async", "many")


def produce(gateway: GatewayThread, role: Role, topic: str, way: str) -> tuple[CODE, str]:
    metadata = (("authorization", f"Bearer {role}-token"),)
    try:
        if way == "many":
            request = record_pb.ProduceManyRequest(topic=topic, records=[record_pb.NewRecord(value=b"x")])
            gateway.records.ProduceMany(request, metadata=metadata, timeout=60)
        else:
            one = pb.ProdRq(topic=topic, message=b"x", async_mode=way == "async")
            gateway.stub.Produce(one, metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return CODE.OK, ""


def test_only_ingestors_and_admins_produce_to_the_pipelines_topics(
    start_gateway: StartGateway, kafka_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "callers.yaml"
    callers = [{"client_id": f"a-{role}", "sha256": token_hash(f"{role}-token"), "role": str(role)} for role in Role]
    tokens.write_text(yaml.safe_dump({"callers": callers}))
    gateway = start_gateway(identity="token", tokens=tokens)
    free = kafka_topic(1)
    assert {produce(gateway, Role.ADMIN, free, way)[0] for way in WAYS} == {CODE.OK}
    # this topic is known now, and none of the pipeline will be made here, so no call need wait for one
    for module in ("service", "bulk"):
        monkeypatch.setattr(f"dexorder_gateway.kafkapixy.{module}.CREATION_SECONDS", 0.05)
    for role in Role:
        for name in (*sorted(PIPELINE_TOPICS), free):
            for found in (produce(gateway, role, name, way) for way in WAYS):
                if role is Role.CLIENT or (role is Role.PIPELINE and name != free):
                    assert found[0] is CODE.PERMISSION_DENIED
                    assert found[1].startswith(f"client_id 'a-{role}' has the role {role}; ")
                else:  # the topics of the pipeline do not exist here
                    assert found[0] is (CODE.OK if name == free else CODE.INVALID_ARGUMENT), found
