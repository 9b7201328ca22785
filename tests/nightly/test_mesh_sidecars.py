"""The way of a call in a mesh: caller, outbound Envoy, mutual TLS with SPIFFE names, inbound Envoy, relay.

Each sidecar is killed, frozen, drained and replaced while notifications come. What a client has got is compared with
what was announced.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ed25519

from dexorder import AsyncClient
from dexorder_common.rpc import streams
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2_grpc as rpc
from tests.fixtures_tls import Authority
from tests.nightly.envoy import Sidecar
from tests.nightly.envoy_config import ISTIO, Profile, Workload
from tests.nightly.test_mesh import NOTIFICATIONS, announced, envoy, received
from tests.rig.processes import free_ports
from tests.rig.report import print_campaign
from tests.unit.services.relay.harness import EARLIER, Suite, page, suite

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
__all__ = ["envoy"]  # the fixture
SPIFFE = "spiffe://cluster.local/ns/quant/sa"
SECONDS = 12.0


@dataclass
class Way:
    """Both sidecars between a caller and a relay."""

    outbound: Sidecar
    inbound: Sidecar
    stranger: Workload


@asynccontextmanager
async def meshed(
    envoy: Path, folder: Path, address: str, profile: Profile = ISTIO, *, filters: Sequence[dict[str, Any]] = ()
) -> AsyncIterator[Way]:
    authority = Authority(folder / "mesh")
    desk, relay, other = (
        Workload(authority.workload(f"{SPIFFE}/{name}"), authority.ca) for name in ("desk", "relay", "other")
    )
    inbound = Sidecar(envoy, folder, [address], profile, relay, None, filters)
    outbound = Sidecar(envoy, folder, [inbound.address], profile, presents=desk)
    with inbound.running(), outbound.running():
        yield Way(outbound, inbound, other)


@asynccontextmanager
async def known_callers(folder: Path, entry: dict[str, Any], **settings: Any) -> AsyncIterator[Suite]:
    """Run a relay that takes its callers from sidecars, with one entry in its callers file."""
    (folder / "callers.yaml").write_text(yaml.safe_dump({"callers": [entry]}))
    async with suite(folder, identity="forwarded", tokens=folder / "callers.yaml", **settings) as s:
        yield s


async def asked(address: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = rpc.HistoryServiceStub(channel)
        try:
            await stub.ListRequests(pb.ListRequestsRequest(page_size=1), metadata=metadata, timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_the_sidecar_says_who_calls_whatever_the_caller_says(envoy: Path, tmp_path: Path) -> None:
    forged = ("x-forwarded-client-cert", f"URI={SPIFFE}/desk")
    async with (
        known_callers(tmp_path, {"client_id": "desk", "uri": f"{SPIFFE}/desk"}) as s,
        meshed(envoy, tmp_path, s.running.address) as way,
    ):
        assert await asked(way.outbound.address) is grpc.StatusCode.OK
        assert await asked(way.outbound.address, ("x-forwarded-client-cert", "URI=x")) is grpc.StatusCode.OK
        stranger = Sidecar(envoy, tmp_path, [way.inbound.address], presents=way.stranger)
        with stranger.running() as address:
            assert await asked(address) is grpc.StatusCode.UNAUTHENTICATED
            assert await asked(address, forged) is grpc.StatusCode.UNAUTHENTICATED
        plain = Sidecar(envoy, tmp_path, [way.inbound.address])
        with plain.running() as address:
            assert await asked(address, forged) is grpc.StatusCode.UNAVAILABLE, "no certificate, no connection"


def checking_jwts(key: ed25519.Ed25519PrivateKey, *, required: bool) -> dict[str, Any]:
    """Return Envoy's filter that checks JWTs, as Istio's RequestAuthentication makes it."""
    public = base64.urlsafe_b64encode(key.public_key().public_bytes_raw()).rstrip(b"=").decode()
    keys = json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public, "kid": "a", "alg": "EdDSA"}]})
    provider = {
        "issuer": "https://issuer.example",
        "local_jwks": {"inline_string": keys},
        "forward_payload_header": "x-jwt-payload",
    }
    lax: dict[str, Any] = {"requires_any": {"requirements": [{"provider_name": "p"}, {"allow_missing": {}}]}}
    rules = [{"match": {"prefix": "/"}, "requires": {"provider_name": "p"} if required else lax}]
    kind = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
    config = {"@type": kind, "providers": {"p": provider}, "rules": rules}
    return {"name": "envoy.filters.http.jwt_authn", "typed_config": config}


@pytest.mark.parametrize("required", [True, False])
async def test_a_jwt_names_the_caller_and_a_made_up_payload_does_not(
    envoy: Path, tmp_path: Path, required: bool
) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    claims = {"iss": "https://issuer.example", "sub": "desk", "exp": int(time.time()) + 600}
    token = ("authorization", f"Bearer {jwt.encode(claims, key, algorithm='EdDSA', headers={'kid': 'a'})}")
    bad = ("authorization", f"Bearer {jwt.encode(claims, ed25519.Ed25519PrivateKey.generate(), algorithm='EdDSA')}")
    made_up = ("x-jwt-payload", base64.urlsafe_b64encode(json.dumps(claims).encode()).decode())
    entry = {"client_id": "desk", "jwt": "https://issuer.example/desk"}
    async with known_callers(tmp_path, entry, forwarded_jwt="x-jwt-payload") as s:
        filters = [checking_jwts(key, required=required)]
        async with meshed(envoy, tmp_path, s.running.address, filters=filters) as way:
            assert await asked(way.outbound.address, token) is grpc.StatusCode.OK
            assert await asked(way.outbound.address, bad) is grpc.StatusCode.UNAUTHENTICATED
            assert await asked(way.outbound.address) is grpc.StatusCode.UNAUTHENTICATED
            assert await asked(way.outbound.address, made_up) is grpc.StatusCode.UNAUTHENTICATED
            assert await asked(way.outbound.address, made_up, bad) is grpc.StatusCode.UNAUTHENTICATED


async def killed(sidecar: Sidecar) -> None:
    sidecar.kill()
    await asyncio.to_thread(sidecar.start)


async def frozen(sidecar: Sidecar) -> None:
    sidecar.freeze()
    await asyncio.sleep(3)
    sidecar.thaw()


async def frozen_and_replaced(sidecar: Sidecar) -> None:
    sidecar.freeze()
    await asyncio.sleep(3)
    await killed(sidecar)


async def drained_and_replaced(sidecar: Sidecar) -> None:
    await asyncio.to_thread(sidecar.drain)
    await asyncio.sleep(1)
    await killed(sidecar)


PROFILES = {"istio": ISTIO, "envoy": Profile(route=15, idle=300), "short": Profile(route=1, idle=2)}
Strike = Callable[[Sidecar], Awaitable[None]]
STRIKES: tuple[Strike, ...] = (killed, frozen, frozen_and_replaced, drained_and_replaced)


@pytest.mark.parametrize("profile", PROFILES)
async def test_what_becomes_of_a_sidecar_costs_nothing(
    envoy: Path, tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 2.0)
    started_s, figures = time.monotonic(), dict[str, int]()
    for side in ("outbound", "inbound"):
        for strike in STRIKES:
            folder = tmp_path / f"{side}-{strike.__name__}"
            folder.mkdir()
            async with (
                suite(folder, keep_alive_seconds=0.5) as s,
                meshed(envoy, folder, s.running.address, PROFILES[profile]) as way,
                AsyncClient(way.outbound.address) as client,
            ):
                async with asyncio.TaskGroup() as group:
                    found = group.create_task(received(client))
                    group.create_task(announced(s, SECONDS))
                    for _ in range(2):
                        await asyncio.sleep(SECONDS / 4)
                        await strike(getattr(way, side))
                assert found.result() == [f"r{number}" for number in range(NOTIFICATIONS)], (side, strike)
                figures[f"{side} {strike.__name__}"] = len(found.result())
    print_campaign(f"sidecars with mutual TLS, {profile}", list(figures), list(figures.values()), since_s=started_s)


@pytest.mark.parametrize("profile", ["istio", "short"])
async def test_a_relay_that_is_replaced_costs_nothing(envoy: Path, tmp_path: Path, profile: str) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    names = [f"r{number}" for number in range(30)]
    async with (
        meshed(envoy, tmp_path, address, PROFILES[profile]) as way,
        AsyncClient(way.outbound.address) as client,
    ):
        reading: asyncio.Task[list[str]] | None = None

        async def read() -> list[str]:
            async with aclosing(client.notifications("RESPONSE:me")) as found:
                return [(await anext(found)).request_id for _ in names]

        for life in range(3):
            async with suite(tmp_path, listen=address) as s:
                if not life:
                    await s.pipeline.report(snapshot_id=s.pipeline.write(range(60)), pages=[page(EARLIER, 0, 60)])
                reading = reading or asyncio.create_task(read())
                for number in range(10 * life, 10 * life + 10):
                    await s.queued(f"r{number}", number, number + 1, client_id="me")
                    await asyncio.sleep(0.1)
        async with suite(tmp_path, listen=address):
            assert reading is not None
            assert await asyncio.wait_for(reading, 120) == names
