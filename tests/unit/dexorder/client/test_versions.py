"""A relay of another version: what it says of itself, and the sentence for a call, dataset or capability it lacks."""

from __future__ import annotations

import pytest

from dexorder import AsyncClient, Client, errors
from dexorder.client.failures import missing_capability, version_error
from dexorder_common.model.errors import Code
from dexorder_common.model.server_info import CAPABILITIES, ServerInfo, Stability, is_older
from dexorder_common.packages import version
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2 as pb
from tests.fakes.relay_server import FakeRelay, relay_info

ASKED = ("BTC/USDT.SIM", "2024-01-01", "2024-01-02")
OWN = version()


def test_both_clients_return_the_facts(fake: FakeRelay) -> None:
    fake.info = relay_info("0.9.1")
    fake.info.services.append(pb.ServedService(name="dexorder.new.v1.NewService", stability=7))  # type: ignore[arg-type]
    with Client(fake.address) as client:
        info = client.server_info()
    assert (info.part, info.version) == ("relay", "0.9.1")
    assert info.services == {
        "dexorder.relay.v1.HistoryService": Stability.STABLE,
        "dexorder.new.v1.NewService": Stability.UNKNOWN,
    }
    assert info.datasets == ("candles", "trades", "tickers", "funding")
    assert info.capabilities == tuple(CAPABILITIES) and info.limits == {"max_request_periods": 200_000_000}
    assert info.as_json()["services"]["dexorder.relay.v1.HistoryService"] == "stable"


async def test_missing_call_names_both_versions_and_the_relay_is_asked_once(fake: FakeRelay) -> None:
    fake.info = relay_info("0.0.7")
    fake.missing_calls = {"GetRequest", "StreamCoverage", "WatchNotifications"}
    wanted = (
        f"the relay at {fake.address} is version 0.0.7 and does not have this call; this client is {OWN}: "
        "update the relay"
    )
    async with AsyncClient() as client:
        with pytest.raises(errors.NotSupported) as unary:
            await client.get_request("any")
        assert str(unary.value) == wanted and fake.info_calls == 1
        with pytest.raises(errors.NotSupported) as finite:
            await client.coverage("BTC/USDT.SIM", "1h")
        with pytest.raises(errors.NotSupported) as endless:
            await anext(client.notifications("RESPONSE:me"))
        assert str(finite.value) == str(endless.value) == wanted
        assert fake.info_calls == 3
        assert await client.list_requests() == [], "other calls go on"


async def test_relay_without_the_call_for_its_version_is_older(fake: FakeRelay) -> None:
    fake.missing_calls = {"GetRequest", "GetServerInfo"}
    async with AsyncClient() as client:
        for failing in (client.get_request("any"), client.server_info()):
            with pytest.raises(errors.NotSupported, match=r"is older than 0\.1\.0 and does not have this call"):
                await failing


async def test_missing_dataset_names_those_of_the_relay(fake: FakeRelay) -> None:
    fake.refuse = "dataset 'funding' is not one of candles, trades"
    fake.info = relay_info("0.0.7")
    del fake.info.datasets[2:]
    async with AsyncClient() as client:
        with pytest.raises(errors.NotSupported, match=r"dataset funding \(it has candles, trades\); this client is"):
            await client.funding(*ASKED)
        fake.info = relay_info(OWN)
        with pytest.raises(errors.RequestRefused, match=r"INVALID: dataset 'funding' is not one of"):
            await client.funding(*ASKED)
        fake.refuse = "ticker 'X/Y.SIM': no such symbol"
        calls = fake.info_calls
        with pytest.raises(errors.RequestRefused, match="no such symbol"):
            await client.funding(*ASKED)
        assert fake.info_calls == calls, "this refusal is not one of an older relay"


async def test_repair_needs_a_capability(fake: FakeRelay) -> None:
    fake.info = relay_info("0.0.7")
    fake.info.capabilities.remove("repair-values")
    async with AsyncClient() as client:
        with pytest.raises(errors.NotSupported, match=r"does not have repair-values, which needs 0\.1\.0; this client"):
            await client.verify("BTC/USDT.SIM", "1h", repair=True)
        assert not fake.asked, "nothing was repaired"


def info(part: str, of_version: str) -> ServerInfo:
    return ServerInfo(part, of_version, {}, ("candles",), (), {})


def test_newer_relay_and_another_part() -> None:
    newer = version_error(Code.UNIMPLEMENTED, "", info("relay", "999.0.0"), "a:1")
    assert str(newer).endswith(f"this client is {OWN}: update this client")
    other = version_error(Code.UNIMPLEMENTED, "", info("gateway", OWN), "a:1")
    assert isinstance(other, errors.RelayUnreachable)
    assert str(other).startswith(f"a:1 is the gateway, version {OWN}, not a relay; --relay or DEXORDER_RELAY")
    unknown_dataset = version_error(Code.INVALID_ARGUMENT, "dataset 'x' is not one of candles", None, "a:1")
    assert isinstance(unknown_dataset, errors.RequestRefused), "the relay's own text names its datasets"
    for name in CAPABILITIES:
        assert isinstance(missing_capability(name, info("relay", "0.0.7"), "a:1"), errors.NotSupported)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.1.0", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("0.2.0", "0.1.9", False),
        ("0.1.0", "0.1.0", False),
        ("0.1.0.dev3", "0.1.1", True),
        ("0.1.1rc1", "0.1.1", False),
        ("unknown", "0.1.0", False),
        ("0.1.0", "unknown", False),
    ],
)
def test_older_versions(one: str, other: str, expected: bool) -> None:
    assert is_older(one, other) is expected
