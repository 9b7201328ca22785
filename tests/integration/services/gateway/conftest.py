"""Stub of pytest-grpc for the gateway that the tests of a module share."""

from __future__ import annotations

import pytest

from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.gateway_thread import GatewayThread


def pytest_configure(config: pytest.Config) -> None:
    """Load pytest-grpc, which imports gRPC, for these tests only."""
    config.pluginmanager.import_plugin("pytest_grpc.plugin")


# pytest-grpc's fixtures serve a synchronous servicer; with these two replaced its channel and stub reach our server.


@pytest.fixture(scope="module")
def grpc_addr(shared_gateway: GatewayThread) -> str:
    return shared_gateway.address


@pytest.fixture(scope="module")
def grpc_server(shared_gateway: GatewayThread) -> GatewayThread:
    return shared_gateway


@pytest.fixture(scope="module")
def grpc_stub_cls() -> type[rpc.KafkaPixyStub]:
    return rpc.KafkaPixyStub
