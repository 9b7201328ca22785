"""Part of the async client for users' functions (UDFs) on the stream: start, stop, list, read their lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dexorder.client.connection import RelayConnection
from dexorder.client.inputs import refused
from dexorder_common.model.udf import UdfDefinition, UdfStatus
from dexorder_common.rpc.udf_messages import decode_definition, decode_status, encode_definition, names_only
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as pb

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ListedUdf:
    """A UDF.

    Attributes:
        definition: None if the relay does not know it: the Spark driver has not reported yet.
        declared: It is in the file of the Spark host.
        client_id: Who started it; empty without identity.
    """

    name: str
    definition: UdfDefinition | None
    status: UdfStatus
    declared: bool
    client_id: str


@dataclass(frozen=True, slots=True)
class Udfs:
    """All UDFs, and when the Spark driver last reported, in nanoseconds since the epoch; 0 for never."""

    udfs: tuple[ListedUdf, ...]
    reported_ns: int


@dataclass(frozen=True, slots=True)
class UdfLine:
    """A line that a UDF has written to stderr, or that the driver says about it."""

    number: int
    time_ns: int
    text: str


class AsyncUdfs:
    """UDFs of one relay, for asyncio."""

    def __init__(self, connection: RelayConnection) -> None:
        self._connection = connection

    async def start(self, udf: str | UdfDefinition, *, anew: bool = False) -> int:
        """Start a UDF, or start it again after it was stopped or has failed; return the number of this start.

        It survives restarts and runs until it is stopped. Its output is the table ``trading.udf_<name>``.

        Args:
            udf: Its definition; or its name, for a definition that was sent before or is in the Spark host's file.
            anew: Forget the state and the position of earlier runs. The rows stay.

        Raises:
            RequestRefused: The definition is invalid, or it runs with another one.
            RequestUnknown: No definition has this name.
        """
        if isinstance(udf, UdfDefinition):
            with refused():
                udf.check()
        message = pb.Udf(name=udf) if isinstance(udf, str) else encode_definition(udf)
        request = pb.StartUdfRequest(udf=message, reset_state=anew)
        answer: Any = await self._connection.call(self._connection.udfs.StartUdf, request)
        return int(answer.generation)

    async def stop(self, name: str) -> None:
        """Stop a UDF; its rows, its state and its position stay. RequestUnknown for an unknown name."""
        await self._connection.call(self._connection.udfs.StopUdf, pb.StopUdfRequest(name=name))

    async def logs(self, name: str, *, after: int = 0) -> list[UdfLine]:
        """Return the last lines that a UDF has written to stderr, after the line of a number."""
        request = pb.ListUdfLogsRequest(name=name, after_number=after, page_size=_PAGE)
        pages = self._connection.pages(self._connection.udfs.ListUdfLogs, request)
        return [UdfLine(each.number, each.time_ns, each.text) async for answer in pages for each in answer.lines]

    async def list(self) -> Udfs:
        """Return all UDFs by name, with their states."""
        pages = self._connection.pages(self._connection.udfs.ListUdfs, pb.ListUdfsRequest(page_size=_PAGE))
        found, reported_ns = list[ListedUdf](), 0
        async for answer in pages:
            found += map(_decode, answer.udfs)
            reported_ns = answer.reported_ns
        return Udfs(tuple(found), reported_ns)


def _decode(message: pb.ListedUdf) -> ListedUdf:
    return ListedUdf(
        message.udf.name,
        None if names_only(message.udf) else decode_definition(message.udf),
        decode_status(message.status),
        message.declared,
        message.client_id,
    )
