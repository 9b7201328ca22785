"""Requests out of literal bytes, however they are cut; what can be read in two ways is refused."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_gateway.http1.limits import MAX_HEAD_BYTES
from dexorder_gateway.http1.messages import HttpRequest
from dexorder_gateway.http1.reader import BadRequest, Part, RequestReader

MAX_BODY = 1_000
POST = b"POST /topics/t/messages?key=%FF&sync HTTP/1.1\r\nHost: x:1\r\nX-Kafka-A: AAA=\r\nx-kafka-a: BBB=\r\n"
SENT = {
    "no body": b"GET /topics?a HTTP/1.1\r\nHost: x\r\n\r\n",
    "length": POST + b"Content-Length: 4\r\n\r\n\xff\0\r\n",
    "chunks": POST
    + b"Transfer-Encoding: chunked\r\n\r\n3;name=value\r\n\xff\0\r\r\n01\r\n\n\r\n0\r\nTrailer: t\r\n\r\n",
    "old": b"POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
    "empty lines before": b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "upgrade": POST + b"Content-Length: 4\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAA\r\n\r\nbody",
    "upgrade and chunks": POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\nbody\r\n0\r\n\r\n",
    "upgrade without body": b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
}


def read(*parts: bytes) -> list[HttpRequest]:
    reader = RequestReader(MAX_BODY)
    return [request for part in parts for request in reader.feed(part)]


def essence(request: HttpRequest) -> tuple[str, bytes, bytes, bool]:
    return request.method, request.target, request.body, request.keeps_alive


def test_a_request_has_its_line_headers_and_body() -> None:
    (request,) = read(SENT["length"])
    assert (request.method, request.path, request.query) == ("POST", "/topics/t/messages", b"key=%FF&sync")
    assert request.headers == [("host", "x:1"), ("x-kafka-a", "AAA="), ("x-kafka-a", "BBB="), ("content-length", "4")]
    assert request.first["x-kafka-a"] == "AAA=" and request.body == b"\xff\0\r\n"
    assert request.keeps_alive and not request.is_old and not request.is_too_large


def test_a_length_chunks_and_a_refused_upgrade_have_the_same_body() -> None:
    assert [read(SENT[name])[0].body for name in ("length", "chunks")] == [b"\xff\0\r\n"] * 2
    assert [read(SENT[name])[0].body for name in ("upgrade", "upgrade and chunks")] == [b"body"] * 2
    assert "upgrade" not in read(SENT["upgrade"])[0].first


@pytest.mark.parametrize(
    ("head", "keeps_alive"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n", False),
    ],
)
def test_whether_a_further_request_may_come(head: bytes, keeps_alive: bool) -> None:
    reader = RequestReader(MAX_BODY)
    (request,) = reader.feed(head + b"Host: x\r\n\r\n")
    assert request.keeps_alive == keeps_alive and reader.part is (Part.NOTHING if keeps_alive else Part.END)
    assert len(reader.feed(SENT["no body"])) == keeps_alive


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a?b?c=%3F", "/a", b"b?c=%3F"),
        (b"/a%2Fb?", "/a%2Fb", b""),
        (b"http://host:1/a/b?c", "/a/b", b"c"),
        (b"http://host", "/", b""),
        (b"*", "/", b""),
    ],
)
def test_path_and_query_of_a_target(target: bytes, path: str, query: bytes) -> None:
    (request,) = read(b"OPTIONS %s HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    assert (request.path, request.query) == (path, query)


@given(st.lists(st.sampled_from(sorted(SENT)), min_size=1, max_size=4), st.data())
def test_requests_are_the_same_however_their_bytes_are_cut(names: list[str], data: st.DataObject) -> None:
    sent = b"".join(SENT[name] for name in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    parts = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert [essence(each) for each in read(*parts)] == [essence(read(SENT[name])[0]) for name in names]


@pytest.mark.parametrize("name", sorted(SENT))
def test_requests_are_the_same_byte_by_byte(name: str) -> None:
    sent = SENT[name] * 2
    (one, two) = read(*(sent[place : place + 1] for place in range(len(sent))))
    assert essence(one) == essence(two) == essence(read(SENT[name])[0])


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        POST + b"Content-Length: 4, 4\r\n\r\nabcd",
        POST + b"Content-Length: +4\r\n\r\nabcd",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 99999999999999999999\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\n\r\nabc",
        POST + b"Transfer-Encoding: chunked, gzip\r\n\r\nabc",
        POST + b"Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        POST + b"Content-Length : 4\r\n\r\nabcd",
        POST + b"A: b\r\n folded\r\n\r\n",
        POST + b"A: b\0c\r\n\r\n",
        POST + b"A: b\rContent-Length: 4\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/3.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nxGARBAGE\r\n\r\n",
    ],
)
def test_bytes_that_could_be_read_in_two_ways_are_refused_and_nothing_after_them_is_read(sent: bytes) -> None:
    reader = RequestReader(MAX_BODY)
    with pytest.raises(BadRequest) as caught:
        for request in reader.feed(sent):
            assert b"GARBAGE" in sent, request
    assert caught.value.status == 400 and str(caught.value)
    assert reader.part is Part.END and reader.feed(SENT["no body"]) == []


def test_requests_before_a_bad_one_are_not_lost() -> None:
    reader = RequestReader(MAX_BODY)
    with pytest.raises(BadRequest):
        reader.feed(SENT["length"] + b"nonsense\r\n\r\n")
    assert [essence(each) for each in reader.taken()] == [essence(read(SENT["length"])[0])] and not reader.taken()


@pytest.mark.parametrize(
    "frame", [b"Content-Length: %d\r\n\r\n%s", b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"]
)
def test_a_body_that_is_too_large_is_read_to_its_end_and_not_kept(frame: bytes) -> None:
    sizes = (MAX_BODY, MAX_BODY + 1, 10 * MAX_BODY)
    requests = read(*(POST + frame % (size, bytes(size)) for size in sizes), SENT["no body"])
    assert [(len(each.body), each.is_too_large) for each in requests] == [
        (MAX_BODY, False),
        (0, True),
        (0, True),
        (0, False),
    ]


@pytest.mark.parametrize(
    ("head", "awaits"),
    [
        (b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\n", True),
        (b"POST / HTTP/1.1\r\nExpect: 200-ok\r\n", False),
        (b"POST / HTTP/1.0\r\nExpect: 100-continue\r\n", False),
    ],
)
def test_a_client_may_wait_with_its_body(head: bytes, awaits: bool) -> None:
    reader = RequestReader(MAX_BODY)
    reader.feed(head + b"Content-Length: 1\r\n\r\n")
    assert reader.awaits_continue == awaits
    reader.feed(b"x")
    assert not reader.awaits_continue


ENDLESS = {
    "target": (b"GET /", b"a" * 1_000),
    "header": (b"GET / HTTP/1.1\r\nA: ", b"a" * 1_000),
    "headers": (b"GET / HTTP/1.1\r\n", b"A: b\r\n" * 100),
    "name": (b"GET / HTTP/1.1\r\n", b"a" * 1_000),
    "empty lines": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    "extensions": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 1_000),
    "trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n" * 100),
    "trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: ", b"a" * 1_000),
}


@pytest.mark.parametrize("kind", [kind for kind, (_, more) in ENDLESS.items() if more])
def test_a_head_without_end_is_refused_before_it_takes_memory(kind: str) -> None:
    start, more = ENDLESS[kind]
    reader = RequestReader(MAX_BODY)
    reader.feed(start)
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match="more than 65536 bytes beside its body") as caught:
            for _ in range(1_000):
                reader.feed(more)
        assert caught.value.status == 431 and tracemalloc.get_traced_memory()[1] < 64 * MAX_HEAD_BYTES
    finally:
        tracemalloc.stop()


def test_the_longest_head_is_read_and_a_longer_one_is_not_in_whatever_pieces() -> None:
    def sent(size: int) -> bytes:
        return b"GET / HTTP/1.1\r\nA: " + b"a" * size + b"\r\n\r\n"

    rest = len("/") + len("A: \r\n")
    assert len(read(sent(MAX_HEAD_BYTES - rest - 16))) == 1
    with pytest.raises(BadRequest):
        read(sent(MAX_HEAD_BYTES - rest + 1))


def test_a_body_in_chunks_of_a_byte_takes_no_more_memory_than_another() -> None:
    reader = RequestReader(100_000)
    reader.feed(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        for _ in range(1_000):
            reader.feed(b"1\r\nx\r\n" * 100)
        (request,) = reader.feed(b"0\r\n\r\n")
        assert request.body == b"x" * 100_000 and tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_mutated_bytes_are_requests_or_refused() -> None:
    chance = random.Random(44)
    whole = list(SENT.values())
    for _ in range(5_000):
        sent = bytearray(b"".join(chance.choices(whole, k=2)))
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(sent))
            sent[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        reader, cut = RequestReader(MAX_BODY), chance.randrange(len(sent) + 1)
        try:
            for part in (bytes(sent[:cut]), bytes(sent[cut:])):
                reader.feed(part)
        except BadRequest as error:
            assert error.status in (400, 431)
