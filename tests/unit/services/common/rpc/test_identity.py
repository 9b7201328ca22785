"""Identity of callers: the callers file by tables, tokens and certificates on real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common import proxies
from dexorder_common.config import load_settings
from dexorder_common.model.errors import Unauthenticated
from dexorder_common.rpc import identity
from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_common.rpc.identity import Role, certificate_name, current_caller, read_callers, token_hash
from dexorder_common.rpc.lifecycle import RunningServer, grpc_server
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_common.storage.watched_file import WatchedFile
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from tests.fakes.relay_servicer import RelayServicer, add_relay_services
from tests.fixtures_tls import Authority, Pair
from tests.paths import ROOT

NAME, STREAMS = "dexorder.relay.v1.RowsService", "dexorder.relay.v1.HistoryService"
WATCH = history_pb.WatchNotificationsRequest(topic="RESPONSE:me")
HASH = token_hash("x")
REFUSED = grpc.StatusCode.UNAUTHENTICATED
FORBIDDEN = grpc.StatusCode.PERMISSION_DENIED


def write_callers(path: Path, *entries: Mapping[str, Any]) -> Path:
    """Write a callers file; a ``token`` in an entry becomes its hash."""
    shown = [
        {k: v for k, v in entry.items() if k != "token"}
        | ({"sha256": token_hash(entry["token"])} if "token" in entry else {})
        for entry in entries
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"callers": shown}))
    fresh.replace(path)
    return path


# ---- the callers file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "file: "),
        ("callers: 7", "callers: "),
        ("callers: [{client_id: a, token: s3cret-value}]", "callers.0.token: Extra inputs"),
        ("callers: [{client_id: a, sha256: s3cret-value}]", r"callers\.0\.sha256"),
        ("callers: [{client_id: '', role: client}]", r"callers\.0\.client_id"),
        ("callers: [{client_id: a, role: s3cret-value}]", r"callers\.0\.role"),
        ("callers: [{client_id: a, quota: {open_streams: -1}}]", r"callers\.0\.quota\.open_streams"),
        ("callers: [{client_id: a, quota: {s3cret: 1}}]", r"callers\.0\.quota"),
        ("callers: [{client_id: a}, {client_id: a}]", "'a' has two entries"),
        (f"callers: [{{client_id: a, sha256: {HASH}}}, {{client_id: b, sha256: {HASH}}}]", "token of client_id 'b'"),
        ("callers: [{client_id: a, uri: u}, {client_id: b, uri: [u]}]", "uri 'u' of client_id 'b' has two entries"),
        ("callers: [\n{client_id: s3cret-value", "not YAML, line"),
        ("callers: [{client_id: \x00s3cret-value}]", "not YAML"),
    ],
)
def test_error_of_a_callers_file_shows_no_value(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem) as caught:
        read_callers(path)
    assert "s3cret-value" not in str(caught.value)
    with pytest.raises(SystemExit, match="TOKENS"):
        load_settings(ServiceSettings, identity="token", tokens=path)


def test_missing_callers_file_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"TOKENS: .*No such file"):
        load_settings(ServiceSettings, identity="token", tokens=tmp_path / "none.yaml")


def test_example_in_the_docs_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    path = tmp_path / "callers.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    callers = read_callers(path)
    assert len(callers) == 3
    desk = callers.by_token("hello")
    assert desk is not None
    assert (desk.role, desk.quota.unfinished_requests) == (Role.CLIENT, 20)


@given(st.lists(st.text(min_size=1), unique=True, max_size=8), st.text(min_size=1))
def test_token_identifies_only_its_owner(tokens: list[str], other: str) -> None:
    entries = [identity._Entry(client_id=f"c{n}", sha256=(token_hash(t),)) for n, t in enumerate(tokens)]
    callers = identity.Callers(entries)
    for number, token in enumerate(tokens):
        found = callers.by_token(token)
        assert found is not None
        assert found.client_id == f"c{number}"
    assert (callers.by_token(other) is None) == (other not in tokens)


def test_caller_may_have_two_tokens_during_rotation(tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    path.write_text(yaml.safe_dump({"callers": [{"client_id": "a", "sha256": [token_hash("old"), token_hash("new")]}]}))
    callers = read_callers(path)
    assert callers.by_token("old") == callers.by_token("new") == callers.by_name("a")


def test_changed_file_takes_effect_at_once_and_an_invalid_one_changes_nothing(tmp_path: Path) -> None:
    path = write_callers(tmp_path / "callers.yaml", {"client_id": "a", "token": "first"})
    file = WatchedFile(path, "callers", read_callers)
    assert file.current().by_token("first")
    write_callers(path, {"client_id": "a", "token": "second"})
    assert file.current().by_token("second")
    assert not file.current().by_token("first")
    with structlog.testing.capture_logs() as logs:
        path.write_text("callers: [")
        for _ in range(3):
            assert file.current().by_token("second")
        path.unlink()
        for _ in range(3):
            assert file.current().by_token("second")
    assert [entry["log_level"] for entry in logs] == ["error", "error"]  # one per change, not per call
    write_callers(path, {"client_id": "a", "token": "third"})
    assert file.current().by_token("third")


def test_command_prints_a_token_and_its_entry(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    identity.main(["token", "desk-1", "--role", "admin"])
    first, _, entry = capsys.readouterr().out.partition("\n")
    token = first.removeprefix("DEXORDER_TOKEN=")
    assert token not in entry
    path = tmp_path / "callers.yaml"
    path.write_text("callers:\n" + entry)
    caller = read_callers(path).by_token(token)
    assert caller is not None
    assert (caller.client_id, caller.role) == ("desk-1", Role.ADMIN)
    identity.main(["token", "desk-1"])
    assert token not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "alternatives", "expected"),
    [
        ([b"a"], [], "a"),
        ([b"a"], [b"b", b"c"], "a"),
        ([], [b"b"], "b"),
        ([b""], [b"b"], "b"),
        ([], [], None),
        ([b""], [b""], None),
        ([], [b"b", b"c"], None),
        ([b"a", b"b"], [], None),
    ],
)
def test_certificate_name(names: list[bytes], alternatives: list[bytes], expected: str | None) -> None:
    context = {"x509_common_name": names, "x509_subject_alternative_name": alternatives}
    if expected is None:
        with pytest.raises(Unauthenticated):
            certificate_name(context)
    else:
        assert certificate_name(context) == expected


# ---- on the wire ---------------------------------------------------------------------------------------------------


class WhoAmI(RelayServicer):
    """Servicer that returns the caller, in the stream twice: the second time during the running call."""

    async def GetCatalog(self, request: Any, context: Any) -> rows_pb.GetCatalogResponse:
        caller = current_caller()
        return rows_pb.GetCatalogResponse(name=f"{caller.client_id} {caller.role}" if caller else "nobody")

    async def WatchNotifications(
        self, request: Any, context: Any
    ) -> AsyncIterator[history_pb.WatchNotificationsResponse]:
        for _ in range(2):
            await asyncio.sleep(0)
            caller = current_caller()
            answer = history_pb.WatchNotificationsResponse()
            answer.notification.ready.request_id = caller.client_id if caller else ""
            yield answer


def register(server: grpc.aio.Server) -> Sequence[str]:
    add_relay_services(server, WhoAmI())  # type: ignore[abstract]  # the others: UNIMPLEMENTED
    return [NAME, STREAMS]


@asynccontextmanager
async def serve(**settings: Any) -> AsyncIterator[RunningServer]:
    roles = dict.fromkeys((NAME, STREAMS), (Role.CLIENT, Role.ADMIN))
    made = ServiceSettings(listen="127.0.0.1:0", drain_seconds=1, **settings)
    async with grpc_server(made, register, roles=roles) as running:
        yield running


async def ask(address: str, **channel: Any) -> tuple[str, str]:
    """Return the caller that the server sees in a unary call and in a stream, or code and details of the refusal."""
    async with open_channel(address, ChannelSettings(**channel)) as opened:
        stub = RelayStubs(opened)
        try:
            name = (await stub.rows.GetCatalog(rows_pb.GetCatalogRequest(), timeout=30)).name
        except grpc.aio.AioRpcError as error:
            with pytest.raises(grpc.aio.AioRpcError) as stream:
                await stub.history.WatchNotifications(WATCH, timeout=30).read()
            assert stream.value.code() is error.code()
            return error.code().name, error.details() or ""
        told = [a.notification.ready.request_id async for a in stub.history.WatchNotifications(WATCH)]
        assert told == [name.split()[0]] * 2
        return "OK", name


async def open_to_anyone(address: str, ca: Path | None = None, pair: Pair | None = None) -> None:
    """Health needs no identity."""
    settings = ChannelSettings(tls_ca=ca, **_own(pair))
    async with open_channel(address, settings) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)


def _own(pair: Pair | None) -> dict[str, Any]:
    return {"tls_certificate": pair.certificate, "tls_key": pair.key} if pair else {}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_callers(
        tmp_path / "callers.yaml",
        {"client_id": "desk", "token": "desk-token"},
        {"client_id": "boss", "token": "boss-token", "role": "admin"},
        {"client_id": "fetcher", "token": "fetcher-token", "role": "ingestor"},
    )


@pytest.mark.parametrize(
    ("token", "answer"),
    [
        ("desk-token", ("OK", "desk client")),
        ("boss-token", ("OK", "boss admin")),
        ("fetcher-token", ("PERMISSION_DENIED", f"'fetcher' has the role ingestor; {NAME} takes admin or client")),
        ("desk-toke", ("UNAUTHENTICATED", "the token is not known")),
        ("desk-token2", ("UNAUTHENTICATED", "the token is not known")),
        (token_hash("desk-token"), ("UNAUTHENTICATED", "the token is not known")),
        (None, ("UNAUTHENTICATED", "0 tokens")),
    ],
)
async def test_token_identifies_the_caller(token: str | None, answer: tuple[str, str], tokens: Path) -> None:
    async with serve(identity="token", tokens=tokens) as running:
        code, text = await ask(running.address, token=token)
        await open_to_anyone(running.address)
    assert code == answer[0]
    assert answer[1] in text


@pytest.mark.parametrize(("caller", "code"), [("desk", "PERMISSION_DENIED"), ("boss", "OK"), ("fetcher", "OK")])
async def test_service_without_roles_refuses_clients(caller: str, code: str, tokens: Path) -> None:
    settings = ServiceSettings(listen="127.0.0.1:0", drain_seconds=1, identity="token", tokens=tokens)
    async with grpc_server(settings, register) as running:
        assert (await ask(running.address, token=f"{caller}-token"))[0] == code


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ((("authorization", "bearer desk-token"),), None),
        ((("authorization", "BEARER  desk-token"),), None),
        ((("authorization", "desk-token"),), REFUSED),
        ((("authorization", "Basic desk-token"),), REFUSED),
        ((("authorization", "Bearer "),), REFUSED),
        ((("authorization", "Bearer desk-token"), ("authorization", "Bearer boss-token")), REFUSED),
        ((("x-token", "desk-token"),), REFUSED),
        ((("authorization", "Bearer fetcher-token"),), FORBIDDEN),
    ],
)
async def test_metadata_in_every_form_that_clients_send(
    metadata: tuple[tuple[str, str], ...], code: grpc.StatusCode | None, tokens: Path
) -> None:
    async with (
        serve(identity="token", tokens=tokens) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        call: Any = channel.unary_unary(f"/{NAME}/GetCatalog")
        for body in (b"", b"\xff\xff"):  # the request is parsed after the caller is identified
            try:
                await call(body, metadata=metadata, timeout=30)
                got = None
            except grpc.aio.AioRpcError as error:
                got = error.code()
            assert got is (code if code or not body else grpc.StatusCode.INVALID_ARGUMENT)


async def test_service_with_its_own_identity_check_receives_every_call(tokens: Path) -> None:
    settings = ServiceSettings(listen="127.0.0.1:0", drain_seconds=1, identity="token", tokens=tokens)
    for own, stranger, client in (
        ([NAME], ("OK", "nobody"), ("OK", "desk client")),
        (["another.Service"], ("UNAUTHENTICATED", "the token is not known"), ("PERMISSION_DENIED", "")),
    ):
        async with grpc_server(settings, register, own_identity=own) as running:
            for token, (code, text) in (("not-in-the-file", stranger), ("desk-token", client)):
                got, told = await ask_name(running.address, token)
                assert got == code, (own, token)
                assert text in told


async def ask_name(address: str, token: str) -> tuple[str, str]:
    async with open_channel(address, ChannelSettings(token=token)) as channel:  # type: ignore[arg-type]
        try:
            return "OK", (await RelayStubs(channel).rows.GetCatalog(rows_pb.GetCatalogRequest(), timeout=30)).name
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""


async def test_removed_token_is_refused_at_the_next_call(tokens: Path) -> None:
    async with serve(identity="token", tokens=tokens) as running:
        assert (await ask(running.address, token="desk-token"))[0] == "OK"
        write_callers(tokens, {"client_id": "other", "token": "other-token"})
        assert (await ask(running.address, token="desk-token"))[0] == "UNAUTHENTICATED"
        assert await ask(running.address, token="other-token") == ("OK", "other client")


async def test_tokens_are_ignored_without_identity() -> None:
    with_token = ChannelSettings(token="any")  # type: ignore[arg-type]
    async with serve() as running, open_channel(running.address, with_token) as channel:
        assert (await RelayStubs(channel).rows.GetCatalog(rows_pb.GetCatalogRequest())).name == "nobody"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def mutual(authority: Authority, tokens: Path, mode: str) -> dict[str, Any]:
    pair = authority.server()
    return {
        "identity": mode,
        "tokens": tokens,
        "tls_certificate": pair.certificate,
        "tls_key": pair.key,
        "tls_client_ca": authority.ca,
    }


async def test_certificate_identifies_the_caller(authority: Authority, tokens: Path, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    cases: list[tuple[Pair | None, str, str]] = [
        (authority.client("desk"), "OK", "desk client"),
        (authority.client("boss", also=("desk",)), "OK", "boss admin"),
        (authority.client("", also=("desk",)), "OK", "desk client"),
        (authority.client("", also=("desk", "boss")), "UNAUTHENTICATED", "2 names"),
        (authority.client("fetcher"), "PERMISSION_DENIED", "role ingestor"),
        (authority.client("stranger"), "UNAUTHENTICATED", "'stranger' is not known"),
        (authority.client("expired", days=-1), "UNAVAILABLE", ""),
        (foreign.client("desk"), "UNAVAILABLE", ""),
        (None, "UNAVAILABLE", ""),
    ]
    async with serve(**mutual(authority, tokens, "certificate")) as running:
        for pair, code, text in cases:
            got, told = await ask(running.address, tls_ca=authority.ca, **_own(pair))
            assert got == code, (told, text)
            assert text in told
        # a token does not replace a certificate
        got, _ = await ask(running.address, tls_ca=authority.ca, token="desk-token", **_own(cases[5][0]))
        assert got == "UNAUTHENTICATED"
        await open_to_anyone(running.address, authority.ca, cases[5][0])


async def test_token_with_mutual_tls_needs_both(authority: Authority, tokens: Path) -> None:
    stranger = authority.client("stranger")
    async with serve(**mutual(authority, tokens, "token")) as running:
        assert (await ask(running.address, tls_ca=authority.ca, token="desk-token"))[0] == "UNAVAILABLE"
        assert (await ask(running.address, tls_ca=authority.ca, **_own(stranger)))[0] == "UNAUTHENTICATED"
        given = await ask(running.address, tls_ca=authority.ca, token="desk-token", **_own(stranger))
        assert given == ("OK", "desk client")


async def test_unix_socket_needs_no_identity(tokens: Path, tmp_path: Path) -> None:
    settings = ServiceSettings(listen="127.0.0.1:0", drain_seconds=1, identity="token", tokens=tokens)
    socket = f"unix:{tmp_path}/s.sock"
    async with grpc_server(settings, register, extra_addresses=[socket]) as running:
        async with open_channel(socket, ChannelSettings()) as channel:
            assert (await RelayStubs(channel).rows.GetCatalog(rows_pb.GetCatalogRequest())).name == "nobody"
        assert (await ask(running.address))[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("introspection", [True, False])
async def test_reflection_and_channelz_can_be_turned_off(introspection: bool, tokens: Path) -> None:
    async with serve(identity="token", tokens=tokens, introspection=introspection) as running:
        await open_to_anyone(running.address)

        def services() -> set[str]:
            with grpc.insecure_channel(running.address) as channel:
                return set(ProtoReflectionDescriptorDatabase(channel).get_services())

        if introspection:
            assert NAME in await asyncio.to_thread(services)
        else:
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.to_thread(services)
            refusal: Any = caught.value  # grpcio's class is an RpcError and a Call
            assert refusal.code() is grpc.StatusCode.UNIMPLEMENTED


# ---- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"identity": "token"}, "tokens and identity .* go together"),
        ({"tokens": "FILE"}, "tokens and identity .* go together"),
        ({"identity": "certificate", "tokens": "FILE"}, "needs tls_certificate, tls_key and tls_client_ca"),
        ({"tls_client_ca": "x"}, "tls_client_ca needs tls_certificate"),
        ({"tls_certificate": "x"}, "go together"),
        ({"listen": "0.0.0.0:1"}, r"0\.0\.0\.0:1 is reachable"),
        ({"listen": "0.0.0.0:1", "identity": "token", "tokens": "FILE"}, "without TLS"),
        ({"listen": "0.0.0.0:1", "tls_certificate": "x", "tls_key": "x"}, "accepts calls from anyone"),
        ({"listen": "0.0.0.0:1", "allow_insecure": True}, None),
        ({"listen": "0.0.0.0:1", "tls_certificate": "x", "tls_key": "x", "tls_client_ca": "x"}, None),
        (
            {"listen": "0.0.0.0:1", "tls_certificate": "x", "tls_key": "x", "identity": "token", "tokens": "FILE"},
            None,
        ),
        ({"identity": "token", "tokens": "FILE"}, None),
    ],
)
def test_listening_beyond_loopback_needs_tls_and_identity(
    given: dict[str, Any], problem: str | None, tokens: Path
) -> None:
    given = {name: tokens if value == "FILE" else value for name, value in given.items()}
    if problem is None:
        load_settings(ServiceSettings, **given)
    else:
        with pytest.raises(SystemExit, match=problem):
            load_settings(ServiceSettings, **given)


# ---- names that a proxy forwards -----------------------------------------------------------------------------------

DESK = "spiffe://cluster.local/ns/quant/sa/desk"
SPARK = "spiffe://cluster.local/ns/dexorder/sa/spark"


def element(uri: str, *more: str) -> str:
    """Return an element of x-forwarded-client-cert as Envoy writes it."""
    return ";".join(("By=spiffe://cluster.local/ns/a/sa/relay", f"Hash={HASH}", 'Subject=""', f"URI={uri}", *more))


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (element(DESK), DESK),
        (f"{element(SPARK)},{element(DESK)}", DESK),
        (f'By=x;Subject="CN=a,URI={SPARK};O=\\"b\\"";URI={DESK};DNS=desk', DESK),
        (f'uri="{DESK}"', DESK),
        (f'Subject="CN=\\\\";URI={DESK}', DESK),
    ],
)
def test_the_last_proxy_names_the_caller(header: str, found: str) -> None:
    assert proxies.forwarded_uri(header) == found


@pytest.mark.parametrize(
    "header",
    [
        "",
        "By=x;Hash=y",
        f"URI={DESK};URI={SPARK}",
        f"{element(DESK)},",
        f"{element(DESK)},By=x;Hash=y",
        "URI=",
        f'Subject="CN=a;URI={DESK}',
    ],
)
def test_a_header_without_one_name_names_nobody(header: str) -> None:
    with pytest.raises(Unauthenticated, match="URIs in the last element of x-forwarded-client-cert"):
        proxies.forwarded_uri(header)


class Call:
    """A call as a transport shows it."""

    def __init__(self, peer: str, *entries: tuple[str, str]) -> None:
        self._peer, self._entries = peer, entries

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._entries


@pytest.mark.parametrize(
    ("peer", "may"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv4:127.0.0.6:5000", True),  # as Istio's sidecar calls
        ("ipv6:%5B::1%5D:5000", True),
        ("ipv6:[::ffff:127.0.0.1]:5000", True),
        ("http:127.0.0.1", True),
        ("http:::1", True),
        ("ipv4:10.1.2.3:5000", True),
        ("ipv4:10.2.2.3:5000", False),
        ("http:10.2.2.3", False),
        ("ipv6:[::ffff:10.2.2.3]:5000", False),
        ("ipv6:[fe80::1]:5000", False),
        ("nonsense", False),
    ],
)
def test_only_a_proxy_may_name_a_caller(peer: str, may: bool, tmp_path: Path) -> None:
    path = write_callers(tmp_path / "callers.yaml", {"client_id": "desk", "uri": DESK})
    file = WatchedFile(path, "callers", read_callers)
    networks = proxies.parse_networks("10.1.0.0/16")
    admission = identity.Admission("forwarded", file, {NAME: (Role.CLIENT,)}, (), networks)
    call = Call(peer, ("x-forwarded-client-cert", element(SPARK)), ("x-forwarded-client-cert", element(DESK)))

    def admitted() -> str:
        admission.admit(NAME, call)
        caller = current_caller()
        return caller.client_id if caller is not None else ""

    context = copy_context()  # of its own, or the caller would be that of all later tests
    if may:
        assert context.run(admitted) == "desk"
    else:
        with pytest.raises(Unauthenticated, match="which is not a proxy that may name a caller"):
            context.run(admitted)


ISSUER = "https://issuer.example"
CLAIMS = {"iss": ISSUER, "sub": "desk"}


def payload(claims: object) -> str:
    """Return the metadata of a JWT's payload as Envoy writes it, without padding."""
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()


def of_jwt(tmp_path: Path, peer: str, *payloads: str, metadata: str = "x-jwt-payload") -> str:
    """Return who the caller is of a call with a payload, beside the certificate of the account spark."""
    desk = {"client_id": "desk", "jwt": f"{ISSUER}/desk"}
    path = write_callers(tmp_path / "callers.yaml", desk, {"client_id": SPARK, "role": "pipeline"})
    file = WatchedFile(path, "callers", read_callers)
    roles = {NAME: tuple(Role)}
    admission = identity.Admission("forwarded", file, roles, (), proxies.parse_networks("10.1.0.0/16"), metadata)
    entries = [("x-jwt-payload", each) for each in payloads]
    call = Call(peer, ("x-forwarded-client-cert", element(SPARK)), *entries)

    def admitted() -> str:
        admission.admit(NAME, call)
        caller = current_caller()
        return caller.client_id if caller is not None else ""

    return copy_context().run(admitted)


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.6:1", "ipv4:10.1.2.3:1"])
def test_a_jwt_that_a_proxy_has_checked_names_the_caller(peer: str, tmp_path: Path) -> None:
    assert of_jwt(tmp_path, peer, payload(CLAIMS)) == "desk"
    assert of_jwt(tmp_path, peer) == SPARK, "without one the certificate does"
    assert of_jwt(tmp_path, peer, payload(CLAIMS), metadata="") == SPARK, "metadata that nobody has named is no JWT"


@pytest.mark.parametrize(
    ("peer", "payloads"),
    [
        ("ipv4:10.2.0.1:1", [payload(CLAIMS)]),  # a stranger
        ("ipv4:127.0.0.1:1", [payload(CLAIMS), payload(CLAIMS)]),  # one of them is the caller's own
        ("ipv4:127.0.0.1:1", [payload(CLAIMS | {"sub": "other"})]),
        ("ipv4:127.0.0.1:1", [payload(CLAIMS | {"iss": "https://issuer.example/desk", "sub": ""})]),
        ("ipv4:127.0.0.1:1", [payload({"iss": ISSUER, "sub": ["desk"]})]),
        ("ipv4:127.0.0.1:1", [payload({"sub": "desk"})]),
        ("ipv4:127.0.0.1:1", [payload([ISSUER, "desk"])]),
        (
            "ipv4:127.0.0.1:1",
            [payload({"iss": "spiffe:/", "sub": "cluster.local/ns/dexorder/sa/spark"})],
        ),  # a URI's name
        ("ipv4:127.0.0.1:1", [""]),
        ("ipv4:127.0.0.1:1", ["%%%"]),
        ("ipv4:127.0.0.1:1", [base64.urlsafe_b64encode(b"[" * 100_000).decode()]),
        ("ipv4:127.0.0.1:1", [base64.urlsafe_b64encode(b"\xff\xfe").decode()]),
    ],
)
def test_a_payload_that_is_not_a_known_ones_names_nobody(peer: str, payloads: list[str], tmp_path: Path) -> None:
    """Nor does the certificate then: whoever sends a bad payload must not become the proxy's account."""
    with pytest.raises(Unauthenticated):
        of_jwt(tmp_path, peer, *payloads)


async def test_callers_of_a_mesh_have_their_own_name_and_role(tmp_path: Path) -> None:
    desk, spark = {"client_id": "desk", "uri": [DESK, "spiffe://other"]}, {"client_id": SPARK, "role": "ingestor"}
    path = write_callers(tmp_path / "callers.yaml", desk, spark)
    async with (
        serve(identity="forwarded", tokens=path) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        stub: Any = RelayStubs(channel)

        async def answer(*headers: str) -> str | grpc.StatusCode:
            metadata = [("x-forwarded-client-cert", header) for header in headers]
            try:
                found = await stub.rows.GetCatalog(rows_pb.GetCatalogRequest(), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return str(found.name)

        assert await answer(element(DESK)) == "desk client"
        assert await answer(element("spiffe://other")) == "desk client"
        assert await answer(element(SPARK), element(DESK)) == "desk client", "forged ones stand before"
        assert await answer(element(DESK), element(SPARK)) is FORBIDDEN
        assert await answer(element(DESK), element("spiffe://stranger")) is REFUSED
        assert await answer() is REFUSED


def test_forwarded_identity_needs_no_tls_and_a_list_of_proxies_needs_it(tmp_path: Path) -> None:
    path = write_callers(tmp_path / "callers.yaml", {"client_id": "desk", "uri": DESK})
    ServiceSettings(listen="0.0.0.0:1", identity="forwarded", tokens=path, forwarded_from="10.0.0.0/8, ::1/128")
    for wrong, text in (
        ({"identity": "forwarded", "tokens": path, "forwarded_from": "10.0.0.0/40"}, "10.0.0.0/40"),
        (
            {"identity": "token", "tokens": path, "forwarded_from": "10.0.0.0/8"},
            "forwarded_from and forwarded_jwt need identity forwarded",
        ),
        ({"identity": "forwarded"}, "tokens and identity"),
    ):
        with pytest.raises(ValueError, match=text):
            ServiceSettings(listen="127.0.0.1:1", **wrong)


def test_our_token_has_its_own_metadata_beside_that_of_a_mesh() -> None:
    jwt, own = ("authorization", "Bearer a.b.c"), ("x-dexorder-token", "sesame")
    assert identity.bearer_token(Call("", jwt, own)) == "sesame"
    assert identity.bearer_token(Call("", own)) == "sesame"
    assert identity.bearer_token(Call("", jwt)) == "a.b.c"
    with pytest.raises(Unauthenticated, match="2 tokens in the metadata 'x-dexorder-token'"):
        identity.bearer_token(Call("", own, own))


@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
async def test_a_client_sends_its_token_in_our_metadata(secure: bool, tmp_path: Path) -> None:
    path = write_callers(tmp_path / "callers.yaml", {"client_id": "desk", "token": "sesame"})
    pair = (authority := Authority(tmp_path)).server()
    tls = {"tls_certificate": pair.certificate, "tls_key": pair.key} if secure else {}
    given: dict[str, Any] = {"token": "sesame", "token_metadata": "x-dexorder-token"}
    async with serve(identity="token", tokens=path, **tls) as running:
        settings = ChannelSettings(tls_ca=authority.ca if secure else None, **given)
        async with open_channel(running.address, settings) as channel:
            stub: Any = RelayStubs(channel)
            mesh = [("authorization", "Bearer a.b.c")]
            assert (await stub.rows.GetCatalog(rows_pb.GetCatalogRequest(), metadata=mesh)).name == "desk client"
