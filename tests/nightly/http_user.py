"""A caller of Kafka-Pixy's HTTP API with the methods and errors of the gRPC one, so that the same loads use both."""

from __future__ import annotations

from base64 import b64decode
from http.client import HTTPException
from typing import Any, NoReturn
from urllib.parse import urlencode

import grpc
from grpc.aio import AioRpcError, Metadata

from dexorder_common.rpc.error_details import STATUS_DETAILS
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.conformance.pixy.http_client import Answer, HttpClient
from tests.gateway_thread import GatewayUser

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""What a status of the gateway means; any other one is INTERNAL."""


class HttpUser(GatewayUser):
    """Caller of a gateway over HTTP; ``timeout`` of a call is that of the client.

    A status that the gateway did not send is UNAVAILABLE, as proxies answer with any.
    """

    def connect(self, address: str) -> None:
        """Connect to the HTTP API at this address."""
        self.address = address
        self._http = HttpClient(address)
        self.stub: Any = self

    def Produce(self, request: pb.ProdRq, timeout: float) -> pb.ProdRs:
        """Write a record and wait for it."""
        path = f"/topics/{request.topic}/messages?sync"
        found = self._call("POST", path, request.message, Idempotency_Key=request.idempotency_key)
        return pb.ProdRs(partition=found["partition"], offset=found["offset"])

    def ConsumeNAck(self, request: pb.ConsNAckRq, timeout: float) -> pb.ConsRs:
        """Return the next record without an ack."""
        found = self._call("GET", f"/topics/{request.topic}/messages?group={request.group}&noAck")
        message = b64decode(found["value"])
        return pb.ConsRs(partition=found["partition"], offset=found["offset"], message=message)

    def Ack(self, request: pb.AckRq, timeout: float) -> None:
        """Ack a record."""
        place = urlencode({"group": request.group, "partition": request.partition, "offset": request.offset})
        self._call("POST", f"/topics/{request.topic}/acks?{place}", b"")

    def _call(self, verb: str, path: str, body: bytes | None = None, **headers: str) -> dict[str, Any]:
        try:
            answer = self._http.call(verb, path, body, Content_Type="text/plain", **headers)
        except (OSError, EOFError, ValueError, HTTPException) as error:
            raise _error(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        if answer.status != 200:
            _raise(answer)
        return dict(answer.body)


def _raise(answer: Answer) -> NoReturn:
    if not isinstance(answer.body, dict):
        raise _error(grpc.StatusCode.UNAVAILABLE, f"{answer.status}: {answer.body}")
    raise _error(_CODES.get(answer.status, grpc.StatusCode.INTERNAL), answer.body["error"], (STATUS_DETAILS, b""))


def _error(code: grpc.StatusCode, text: str, *trailing: tuple[str, bytes]) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(*trailing), text)
