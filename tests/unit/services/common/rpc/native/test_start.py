"""Choice of the transport by what is installed."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from dexorder_common.config import BadSettings
from dexorder_common.rpc import lifecycle
from dexorder_common.rpc.native import start
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_gateway.config import GatewaySettings
from dexorder_udsource.config import UdsourceSettings
from tests.unit.services.common.rpc.native import NEEDS_MODULE

OLD = ModuleType("dexorder_http2")
"""A package of earlier sources: it lacks the names that are imported today."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Install another package, or none, in place of the one that may be installed."""
    monkeypatch.setitem(sys.modules, "dexorder_http2", request.param)
    for name in [name for name in sys.modules if name.startswith("dexorder_common.rpc.native.")]:
        if not name.endswith(".start"):
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("installed", [None, OLD], indirect=True)
@pytest.mark.usefixtures("installed")
async def test_auto_is_grpcio_without_the_package_or_with_an_old_one() -> None:
    assert not start.is_usable()
    server = lifecycle._server(ServiceSettings(transport="auto"), (), ())
    assert type(server).__module__.startswith("grpc.")


@pytest.mark.parametrize(("installed", "problem"), [(None, "not installed"), (OLD, "newer")], indirect=["installed"])
@pytest.mark.usefixtures("installed")
def test_native_does_not_start_without_the_package_or_with_an_old_one(problem: str) -> None:
    with pytest.raises(BadSettings, match=problem):
        lifecycle._server(ServiceSettings(transport="native"), (), ())


@NEEDS_MODULE
async def test_auto_is_native_where_the_package_is() -> None:
    assert start.is_usable()
    assert type(lifecycle._server(ServiceSettings(transport="auto"), (), ())).__module__.startswith("dexorder_common")


def test_the_parts_with_many_calls_choose_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEXORDER_GATEWAY_TRANSPORT", "DEXORDER_UDSOURCE_TRANSPORT"):  # the night sets them
        monkeypatch.delenv(name, raising=False)
    assert GatewaySettings().transport == UdsourceSettings().transport == "auto"
    assert ServiceSettings().transport == "grpcio"
