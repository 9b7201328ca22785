"""Kafka-Pixy's HTTP API: paths, parameters, statuses and bodies."""

from __future__ import annotations

import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dexorder_common.config import split_address
from dexorder_common.rpc.identity import token_hash
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.server import gateway
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.conformance.pixy.http_client import HttpClient
from tests.fixtures import needs_missing_topics
from tests.fixtures_tls import Authority
from tests.gateway_thread import (
    GatewayThread,
    MakeTopic,
    StartGateway,
    Write,
    commit_as_others_do,
    committed,
    numbers,
    records,
)
from tests.rig.processes import free_ports, until

pytestmark = pytest.mark.kafka
FORM = "application/x-www-form-urlencoded"


def encoded(value: bytes) -> str:
    return b64encode(value).decode()


def new_address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


class HttpGateway:
    """A gateway with both APIs."""

    def __init__(self, kafka: str, **given: object) -> None:
        self.address = new_address()
        self.grpc = GatewayThread(
            **{
                "kafka": kafka,
                "http_listen": self.address,
                "drain_seconds": 0.0,
                "offsets_commit_interval_ms": 20,
                **given,
            }
        )
        self.http = HttpClient(self.address)


@pytest.fixture(scope="module")
def both(kafka: str) -> Iterator[HttpGateway]:
    started = HttpGateway(kafka, long_polling_timeout_ms=500, http_hosts="gateway.trading.svc, other.example")
    started.grpc.wait_ready()
    yield started
    started.grpc.stop()


@pytest.fixture(scope="module")
def client(both: HttpGateway) -> HttpClient:
    return both.http


# ---- produce


def test_produce_answers_and_stores_as_kafka_pixy(client: HttpClient, kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    path = f"/topics/{topic}/messages"
    header = {"x-kafka-trace-ID": encoded(b"\xff1"), "X_Other": "none"}
    assert client.post(f"{path}?key=k&sync", b"text", **header) == (200, {"partition": 0, "offset": 0})
    assert client.post(f"/clusters/default{path}?sync=false&key=", b"{}", "application/json; charset=utf-8") == (
        200,
        {"partition": 0, "offset": 1},
    )
    assert client.post(f"{path}?sync", b"{}", "application/vnd.a+json").status == 200
    assert client.post(f"{path}?sync&key=overruled", b"msg=a+form%21&key=%D0%BA", FORM).status == 200
    assert client.post(path, b"key=k2&msg=async", FORM) == (200, {})
    until(lambda: len(records(kafka, topic)) == 5)
    stored = [(m.key(), m.value(), m.headers()) for m in records(kafka, topic)]
    assert stored == [
        (b"k", b"text", [("Trace-Id", b"\xff1")]),
        (None, b"{}", None),  # an empty key is stored as none
        (None, b"{}", None),
        ("к".encode(), b"a form!", None),
        (b"k2", b"async", None),
    ]


def literal(address: str, request: bytes) -> bytes:
    """Return the answer to these bytes, without a library that would write them another way."""
    with socket.create_connection(split_address(address), 30) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_bytes_of_keys_and_messages_are_stored_as_they_were_sent(
    client: HttpClient, both: HttpGateway, kafka: str, kafka_topic: MakeTopic
) -> None:
    """Otherwise different keys become one, and compaction deletes records."""
    topic = kafka_topic(1)
    form = b"Content-Type: application/x-www-form-urlencoded"

    def send(parameters: bytes, body: bytes, kind: bytes = form) -> None:
        target = b"/topics/%s/messages?sync%s" % (topic.encode(), parameters)
        lines = (
            b"POST %s HTTP/1.1" % target,
            b"Host: x",
            b"Connection: close",
            kind,
            b"Content-Length: %d" % len(body),
        )
        answer = literal(both.address, b"\r\n".join((*lines, b"", body)))
        assert answer.startswith(b"HTTP/1.1 200 "), answer

    send(b"&key=%FF%00%FE", b"\xfe\x00", b"Content-Type: text/plain")
    send(b"&key=%FF%FE", b"{\xff", b"Content-Type: application/json")
    send(b"&key=query", b"key=%ff%01&msg=%FF%00%FE+%2b")
    send(b"", b"msg=\xff\xfe&key=a\xff")
    send(b"&key=q&msg=of+the+query", b"a=1")
    send(b"&msg=of+the+query", b"msg=of+the+body&msg=second")
    stored = [(m.key(), m.value()) for m in records(kafka, topic)]
    assert stored == [
        (b"\xff\x00\xfe", b"\xfe\x00"),
        (b"\xff\xfe", b"{\xff"),
        (b"\xff\x01", b"\xff\x00\xfe +"),
        (b"a\xff", b"\xff\xfe"),
        (b"q", b"of the query"),
        (None, b"of the body"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"POST /topics/\xff/messages HTTP/1.1",
        b"POST /topics/%FF/messages HTTP/1.1",
        b"POST /clusters/%FF/topics/t/messages HTTP/1.1",
        b"POST /topics/t/messages HTTP/1.1\r\nIdempotency-Key: \xff",
        b"POST /topics/t/messages HTTP/1.1\r\nX-Kafka-A: \xff",
        b"GET /topics/t/messages?group=%FF HTTP/1.1",
        b"GET /topics/t/messages?group=\xff HTTP/1.1",
        b"POST /topics/t/acks?group=g&partition=%FF&offset=0 HTTP/1.1",
        b"GET /topics/t/offsets?group=%ED%A0%80 HTTP/1.1",
    ],
)
def test_bytes_that_are_no_text_are_the_callers_mistake_where_a_text_is_expected(
    both: HttpGateway, line: bytes
) -> None:
    lines = (line, b"Host: x", b"Connection: close", b"Content-Type: text/plain", b"Content-Length: 1", b"", b"x")
    answer = literal(both.address, b"\r\n".join(lines))
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer


def test_the_largest_record_is_written(client: HttpClient, kafka_topic: MakeTopic) -> None:
    path = f"/topics/{kafka_topic(1)}/messages?sync&key=k"
    assert client.post(path, bytes(999_999)).status == 200
    assert client.post(path, bytes(1_000_000)).status == 400


def test_bad_produce_is_refused(client: HttpClient, kafka_topic: MakeTopic) -> None:
    path = f"/topics/{kafka_topic(1)}/messages"
    refusals = [
        (client.post(path, b"x", "image/png"), 400, "unsupported content type image/png"),
        (client.post(path, b"May the Force be with you!", FORM), 400, "empty message"),
        (client.post(path, b"x", X_Kafka_Foo="invalid!"), 400, "Invalid base64 encoding for header: X-Kafka-Foo"),
        (client.post("/topics/a%20b/messages?sync", b"x"), 400, "topic 'a b' is not a topic's name"),
        (client.post("/clusters/other/topics/t/messages", b"x"), 400, "proxy `other` does not exist"),
        (client.post(f"{path}?key=100%", b"x"), 400, "key has the escape '%'"),
        (client.post(path, b"&" * 1_000, FORM), 400, "1001 parameters are given"),
        (client.post(path, bytes(1_100_000)), 400, "message of 1100000 bytes is larger than topic"),
        (client.post(path, bytes(5_000_000)), 413, "Maximum request body size 4194304 exceeded"),
    ]
    for answer, status, text in refusals:
        assert answer.status == status
        assert answer.body["error"].startswith(text), answer


def test_a_record_of_a_client_that_asks_for_http_2_is_stored_whole(
    both: HttpGateway, kafka: str, kafka_topic: MakeTopic
) -> None:
    """Java's client does so by default; the bytes are those that it sends."""
    topic = kafka_topic(1)
    lines = (
        b"POST /topics/%s/messages?sync HTTP/1.1" % topic.encode(),
        b"Connection: Upgrade, HTTP2-Settings",
        b"Content-Length: 5",
        b"Host: 127.0.0.1:19092",
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        b"Upgrade: h2c",
        b"User-Agent: Java-http-client/21.0.2",
        b"Content-Type: text/plain",
        b"",
        b"value",
    )
    last = b"GET /_ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    stored, pong = literal(both.address, b"\r\n".join(lines) + last).split(b"HTTP/1.1 ")[1:]
    assert stored.startswith(b"200 ") and pong.endswith(b"pong")
    assert [record.value() for record in records(kafka, topic)] == [b"value"]


def test_unknown_paths_and_methods_are_refused_as_other_mistakes(client: HttpClient) -> None:
    assert client.get("/topic") == (404, {"error": "no call has the path '/topic'"})
    assert client.get("/topics/") == (404, {"error": "no call has the path '/topics/'"})
    status, body = client.call("DELETE", "/clusters/default/topics/t/messages")
    assert status == 405 and body["error"].endswith("has no call with DELETE; it has POST, GET")
    assert client.call("HEAD", "/_ping") == (200, "")


# ---- consume and ack


def test_record_is_consumed_as_kafka_pixy_shows_it(
    client: HttpClient, both: HttpGateway, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    header = pb.RecordHeader(key="a", value=b"\xff")
    both.grpc.stub.Produce(pb.ProdRq(topic=topic, key_value=b"\x00", message=b"\xfev", headers=[header]))
    both.grpc.stub.Produce(pb.ProdRq(topic=topic, key_undefined=True))
    assert client.consume(topic) == {
        "key": encoded(b"\x00"),
        "value": encoded(b"\xfev"),
        "partition": 0,
        "offset": 0,
        "headers": [{"key": "a", "value": encoded(b"\xff")}],
    }
    assert client.consume(topic) == {"key": None, "value": "", "partition": 0, "offset": 1, "headers": []}
    status, body = client.get(f"/topics/{topic}/messages?group={topic}")  # both are acked
    assert (status, body["error"]) == (408, "long polling timeout")


def test_acks_in_the_next_call_and_alone(client: HttpClient, kafka: str, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(4))
    assert client.consume(topic, "&noAck")["offset"] == 0
    assert client.consume(topic, "&ackPartition=0&ackOffset=0")["offset"] == 1
    assert client.consume(topic, "&noAck=")["offset"] == 2
    until(lambda: committed(kafka, topic) == (1, ""))
    assert client.post(f"/topics/{topic}/acks?group={topic}&partition=0&offset=2") == (200, {})
    until(lambda: committed(kafka, topic) == (1, "BB.DswA"))
    refusals = {
        f"acks?group={topic}": "partition and offset are missing",
        f"acks?group={topic}&partition=0": "partition and offset either both should be provided or neither",
        f"acks?group={topic}&partition=-1&offset=0": "partition '-1' is not a number of at most 32 bits",
        f"acks?group={topic}&partition=2147483648&offset=0": "partition '2147483648' is not a number",
        "acks?partition=0&offset=0": "one consumer group is expected, but 0 provided",
    }
    for path, text in refusals.items():
        status, body = client.post(f"/topics/{topic}/{path}")
        assert (status, body["error"][: len(text)]) == (400, text)
    assert client.post(f"/topics/{topic}/acks?group=other&partition=0&offset=0").status == 500
    status, body = client.get(f"/topics/{topic}/messages?group=a&group=b")
    assert (status, body["error"]) == (400, "one consumer group is expected, but 2 provided")
    assert client.get("/topics/no-such-topic/messages?group=g").status == 408


def test_client_that_disconnects_takes_no_record(
    both: HttpGateway, client: HttpClient, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, b"0")
    client.consume(topic)
    waiting = both.http.connect()
    waiting.request("GET", f"/topics/{topic}/messages?group={topic}")
    waiting.close()
    write(topic, b"1")
    assert client.consume(topic)["offset"] == 1


def test_callers_beyond_the_buffer_are_refused(kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    small = HttpGateway(kafka, channel_buffer_size=1, long_polling_timeout_ms=60_000)
    try:
        small.grpc.wait_ready()
        waiting = small.http.connect()
        waiting.request("GET", f"/topics/{topic}/messages?group={topic}")
        until(lambda: bool(_too_many(small.http, topic)))
        small.grpc.begin_stop()
        assert waiting.getresponse().status == 503
        waiting.close()
    finally:
        small.grpc.stop()


def _too_many(client: HttpClient, topic: str) -> bool:
    """Return whether a second caller is refused; it goes away if it would wait."""
    connection = client.connect()
    assert connection.sock is None
    connection.timeout = 0.5
    try:
        connection.request("GET", f"/topics/{topic}/messages?group={topic}")
        return connection.getresponse().status == 429
    except TimeoutError:
        return False
    finally:
        connection.close()


# ---- administration


def test_offsets_are_shown_and_set(client: HttpClient, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(2)
    write(topic, *numbers(6))
    path = f"/topics/{topic}/offsets?group={topic}"
    empty = {"partition": 1, "begin": 0, "end": 0, "count": 0, "offset": -1, "lag": 0}
    first = {"partition": 0, "begin": 0, "end": 6, "count": 6}
    assert client.get(path) == (200, [{**first, "offset": -1, "lag": 6}, empty])
    body = json.dumps([{"partition": 0, "offset": 1, "metadata": "BBBC", "begin": 9, "unknown": 1}]).encode()
    assert client.post(path, body, "application/json") == (200, {})
    wanted = {**first, "offset": 1, "lag": 5, "metadata": "BBBC", "sparse_acks": "1-2,3-5"}
    assert client.get(path) == (200, [wanted, empty])
    now_ms = time.time_ns() // 1_000_000
    assert client.get(f"{path}&time_ms=0").body[0]["offset_at_time"] == 0
    assert client.post(f"{path}&time_ms={now_ms + 3_600_000}") == (200, {})
    assert [each["offset"] for each in client.get(path).body] == [6, 0]
    assert client.post(path, b'[{"PARTITION": 0, "oFFset": 5, "offset": 3, "Metadata": null}]') == (200, {})
    assert [each["offset"] for each in client.get(path).body] == [3, 0]
    for garbage, text in (
        (b"garbage", "Expecting value"),
        (b"[" * 100_000, ""),
        (b"\xff", ""),
        (b"{}", "it is not a list"),
        (b"null", "it is not a list"),
        (b"[1]", "offsets[0] is not an object"),
        (b'[{"partition": 0, "offset": 1}, {"partition": 1}]', "offsets[1].offset is missing"),
        (b'[{"partition": 0, "offset": null}]', "offsets[0].offset is missing"),
        (b'[{"offset": 0}]', "offsets[0].partition is missing"),
        (b'[{"Partition": 0, "Offsett": 1}]', "offsets[0].offset is missing"),
        (b'[{"partition": 0, "offset": "x"}]', "offsets[0].offset 'x' is not a number of at most 64 bits"),
        (b'[{"partition": 0, "offset": true}]', "offsets[0].offset 'True' is not a number"),
        (b'[{"partition": 0, "offset": 1.0}]', "offsets[0].offset '1.0' is not a number"),
        (b'[{"partition": 0, "offset": 9223372036854775808}]', "offsets[0].offset '9223372036854775808' is not"),
        (
            b'[{"partition": 4294967296, "offset": 0}]',
            "offsets[0].partition '4294967296' is not a number of at most 32",
        ),
        (b'[{"partition": 0, "offset": 1, "metadata": 7}]', "offsets[0].metadata '7' is not a text"),
        (b'[{"partition": 0, "offset": 1, "metadata": "\\ud800"}]', "offsets[0].metadata '\\ud800' is not a text"),
    ):
        status, answer = client.post(path, garbage)
        refusal = f"Failed to parse the request: {text}"
        assert (status, answer["error"][: len(refusal)]) == (400, refusal)
    assert client.post(path, b'[{"partition": 2, "offset": 0}]').status == 400
    assert client.post(path, b'[{"partition": 0, "offset": -1}]').status == 400
    assert [each["offset"] for each in client.get(path).body] == [3, 0]


def test_a_commit_to_the_oldest_record_is_shown_and_read_as_one(
    client: HttpClient, kafka: str, kafka_topic: MakeTopic, write: Write, both: HttpGateway
) -> None:
    """Kafka-Pixy's clients set -2; the group starts at the oldest record, wherever new groups start."""
    topic = kafka_topic(1)
    write(topic, *numbers(3))
    commit_as_others_do(kafka, topic, topic, -2, b"")
    shown = {"partition": 0, "begin": 0, "end": 3, "count": 3, "offset": -2, "lag": 3}
    assert client.get(f"/topics/{topic}/offsets?group={topic}") == (200, [shown])
    assert client.consume(topic)["offset"] == 0


@needs_missing_topics
def test_missing_topic_is_not_found(client: HttpClient) -> None:
    path = "/topics/no-such-topic"
    for answer in (client.post(f"{path}/messages?sync", b"x"), client.get(f"{path}/offsets?group=g"), client.get(path)):
        assert (answer.status, answer.body["error"]) == (404, "topic 'no-such-topic' does not exist")


def test_topics_and_consumers(client: HttpClient, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(2)
    write(topic, b"v")
    partitions = [{"partition": p, "leader": 1, "replicas": [1], "isr": [1]} for p in range(2)]
    config = {"version": 1, "config": {}}
    assert topic in client.get("/topics").body
    assert client.get("/topics?withPartitions").body[topic] == {"partitions": partitions}
    assert client.get("/clusters/default/topics?withConfig=").body[topic] == {"config": config}
    assert client.get(f"/topics/{topic}") == (200, {"config": config})
    assert client.get(f"/topics/{topic}?withPartitions").body == {"config": config, "partitions": partitions}
    assert client.get(f"/topics/{topic}/consumers") == (200, {})
    client.consume(topic)
    ((group, consumers),) = client.get(f"/topics/{topic}/consumers").body.items()
    assert (group, list(consumers.values())) == (topic, [[0, 1]])
    assert client.get(f"/topics/{topic}/consumers?group={topic}").body == {topic: consumers}
    assert client.get(f"/topics/{topic}/consumers?group=other") == (400, {"error": "unknown consumer group other"})
    elsewhere = client.get(f"/topics/{topic}-2/consumers?group={topic}")
    assert elsewhere == (400, {"error": f"topic {topic}-2 is not consumed by {topic}"})
    assert client.get("/_ping") == (200, "pong")
    assert client.get("/topics/a/b/c").status == 404


def test_the_first_call_waits_for_kafkas_first_answer(kafka: str, kafka_topic: MakeTopic) -> None:
    """Kafka-Pixy connects before it listens; scripts that wait for the port call at once."""
    topic = kafka_topic(1)
    started = HttpGateway(kafka)
    try:
        assert started.http.post(f"/topics/{topic}/messages?sync", b"x").status == 200
    finally:
        started.grpc.stop()


# ---- who may call


@pytest.mark.parametrize("header", [{"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}])
def test_web_pages_are_refused(client: HttpClient, kafka_topic: MakeTopic, header: dict[str, str]) -> None:
    answer = client.post(f"/topics/{kafka_topic(1)}/messages?sync", b"x", **header)
    assert answer == (403, {"error": "requests of web pages are not accepted"})


@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [
        ("127.0.0.1", True),
        ("[::1]:19092", True),
        ("[::1]", True),
        ("localhost:19092", True),
        ("kafka-pixy", True),
        ("Gateway.trading.svc:19092", True),
        ("other.example", True),
        ("evil.example", False),
        ("evil.example:19092", False),
        ("gateway.trading.svc.evil.example", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_a_domain_that_a_web_page_made_resolve_to_the_gateway_is_refused(
    client: HttpClient, host: str, is_accepted: bool
) -> None:
    """Such a page is the gateway's own for a browser: its GET would read and acknowledge records without a word."""
    status, body = client.get("/topics", Host=host)
    assert status == (200 if is_accepted else 403)
    assert is_accepted or "is not a name of this server" in body["error"]


def test_callers_need_the_identity_that_grpc_requires(kafka: str, kafka_topic: MakeTopic, tmp_path: Path) -> None:
    tokens, path = tmp_path / "callers.yaml", f"/topics/{kafka_topic(1)}/messages?sync"
    callers = [
        {"client_id": f"a-{role}", "sha256": token_hash(f"{role}-token"), "role": role}
        for role in ("client", "pipeline")
    ]
    tokens.write_text(yaml.safe_dump({"callers": callers}))
    guarded = HttpGateway(kafka, identity="token", tokens=tokens, http_unix=tmp_path / "pixy.sock")
    try:
        guarded.grpc.wait_ready()
        staff = {"Authorization": "Bearer pipeline-token"}
        assert guarded.http.post(path, b"x").status == 401
        assert guarded.http.post(path, b"x", Authorization="Bearer client-token").status == 403
        assert guarded.http.post(path, b"x", **staff).status == 200
        assert guarded.http.post("/topics/dexorder.ohlc/messages?sync", b"x", **staff).status == 403
        assert HttpClient(f"unix:{tmp_path}/pixy.sock").post(path, b"x").status == 200
    finally:
        guarded.grpc.stop()


def test_clients_present_their_certificate(kafka: str, kafka_topic: MakeTopic, tmp_path: Path) -> None:
    authority, path = Authority(tmp_path), f"/topics/{kafka_topic(1)}/messages?sync"
    server, known, stranger = authority.server(), authority.client("desk"), authority.client("stranger")
    tokens = tmp_path / "callers.yaml"
    tokens.write_text(yaml.safe_dump({"callers": [{"client_id": "desk", "role": "admin"}]}))
    settings = {"tls_certificate": server.certificate, "tls_key": server.key, "tls_client_ca": authority.ca}
    guarded = HttpGateway(kafka, identity="certificate", tokens=tokens, **settings)
    tls = {name: ssl.create_default_context(cafile=authority.ca) for name in ("none", "known", "stranger")}
    for name, pair in (("known", known), ("stranger", stranger)):
        tls[name].load_cert_chain(pair.certificate, pair.key)
    try:
        until(lambda: HttpClient(guarded.address, tls["known"]).post(path, b"x").status == 200)
        assert HttpClient(guarded.address, tls["stranger"]).post(path, b"x").status == 401
        with pytest.raises(OSError):
            HttpClient(guarded.address, tls["none"]).get("/_ping")
        with socket.create_connection(split_address(guarded.address), 5) as plain:
            plain.sendall(b"GET /_ping HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"pong" not in plain.recv(1_000)
    finally:
        guarded.grpc.stop()


async def test_unix_socket_that_another_process_serves_is_refused(start_gateway: StartGateway, tmp_path: Path) -> None:
    start_gateway(http_unix=tmp_path / "pixy.sock")
    again = GatewaySettings(
        kafka=new_address(), http_unix=tmp_path / "pixy.sock", listen=new_address(), metrics_listen=""
    )
    with pytest.raises(OSError, match="another process does"):
        async with gateway(again):
            raise AssertionError("it serves")


# ---- behind proxies


def test_a_repeated_attempt_is_refused_and_a_key_writes_its_record_once(
    client: HttpClient, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    path, repeated = f"/topics/{topic}/messages?sync", {"x-envoy-attempt-count": "2"}
    first = client.post(path, b"0", **{"Idempotency-Key": "k"})
    assert first == (200, {"partition": 0, "offset": 0})
    assert client.post(path, b"0", **{"Idempotency-Key": "k"}, **repeated) == first
    answer = client.post(path, b"1", **repeated)
    assert answer.status == 409 and "an earlier attempt of this call may have been carried out" in answer.body["error"]
    assert [record.value() for record in records(kafka, topic)] == [b"0"]


def test_an_ack_and_a_key_count_at_another_gateway(kafka: str, kafka_topic: MakeTopic, write: Write) -> None:
    topic, ports = kafka_topic(1), free_ports(2)
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    write(topic, *numbers(2))
    one, other = (
        HttpGateway(kafka, listen=f"127.0.0.1:{port}", peers=peers, long_polling_timeout_ms=500) for port in ports
    )
    try:
        found = one.grpc.wait_ready().consume(topic, no_ack=True)
        other.grpc.wait_ready()
        acked = other.http.post(f"/topics/{topic}/acks?group={topic}&partition=0&offset={found.offset}", b"")
        assert acked.status == 200, acked
        path, key = f"/topics/{topic}/messages?sync", {"Idempotency-Key": "k"}
        assert one.http.post(path, b"2", **key) == other.http.post(path, b"2", **key)
        other.grpc.stub.Produce(pb.ProdRq(topic=topic, key_undefined=True, message=b"2", idempotency_key="k"))
        assert len(records(kafka, topic)) == 3
        until(lambda: committed(kafka, topic)[0] == 1)
    finally:
        other.grpc.stop()
        one.grpc.stop()
