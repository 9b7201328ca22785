"""RPCs of UDFs: those for clients, and the report of the Spark driver."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc
import structlog

from dexorder_common.clock import Clock
from dexorder_common.model.errors import NotFound
from dexorder_common.model.udf import UdfCommand
from dexorder_common.rpc import udf_messages as messages
from dexorder_common.rpc.identity import Caller, current_caller
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as rpc
from dexorder_relay import access
from dexorder_relay.state.changes import Changes, ValueStored
from dexorder_relay.state.udfs import UdfRegistry
from dexorder_relay.store.database import Store
from dexorder_relay.store.loading import read_udfs

log = structlog.get_logger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
UDFS = pb.DESCRIPTOR.services_by_name["UdfRegistryService"].full_name


class UdfRegistryService(rpc.UdfRegistryServiceServicer):
    """Service behind ``dexorder udf start|stop|list|logs``, and what Spark's report does."""

    def __init__(self, registry: UdfRegistry, store: Store, clock: Clock) -> None:
        self._registry = registry
        self._store = store
        self._clock = clock

    @classmethod
    async def load(cls, store: Store, clock: Clock) -> UdfRegistryService:
        """Return the service with the registrations that the database has."""
        registry = UdfRegistry()
        for each in await store.read(read_udfs):
            registry.keep(each)
        return cls(registry, store, clock)

    async def StartUdf(self, request: pb.StartUdfRequest, context: Context) -> pb.StartUdfResponse:  # noqa: N802
        """Start a UDF; a command of its own needs an admin."""
        caller, name = current_caller(), request.udf.name
        self._check_owner(caller, name)
        definition = None if messages.names_only(request.udf) else messages.decode_definition(request.udf)
        if definition is not None and definition.command != UdfCommand():
            access.check_admin(caller, "start a UDF with a command of its own")
        made = self._registry.start(
            name,
            definition,
            anew=request.anew,
            client_id=caller.client_id if caller else "",
            wall_ns=self._clock.wall_ns(),
        )
        changes = Changes()
        if made is not None:
            self._registry.keep(made)
            changes.append(ValueStored(made))
            log.info("UDF started", udf=name, generation=made.generation, client_id=made.client_id)
        await self._store.commit(changes)  # also without a change: the start before is on disk then
        known = self._registry.registrations.get(name)
        return pb.StartUdfResponse(generation=known.generation if known else 0)

    async def StopUdf(self, request: pb.StopUdfRequest, context: Context) -> pb.StopUdfResponse:  # noqa: N802
        """Stop a UDF."""
        self._check_owner(current_caller(), request.name)
        made = self._registry.stop(request.name)
        self._registry.keep(made)
        log.info("UDF stopped", udf=request.name)
        await self._store.commit([ValueStored(made)])
        return pb.StopUdfResponse()

    async def ListUdfs(self, request: pb.ListUdfsRequest, context: Context) -> pb.ListUdfsResponse:  # noqa: N802
        """Return all UDFs; the environment of a command only to admins."""
        caller = current_caller()
        answer = pb.ListUdfsResponse(reported_at=self._registry.reported_ns)
        for each in self._registry.listed():
            known = each.definition
            udf = pb.Udf(name=each.status.name) if known is None else messages.encode_definition(known)
            if not access.is_admin(caller):
                udf.command.env.clear()
            answer.udfs.add(
                udf=udf,
                status=messages.encode_status(each.status),
                declared=each.declared,
                client_id=each.client_id,
            )
        return answer

    async def UdfLogs(self, request: pb.UdfLogsRequest, context: Context) -> pb.UdfLogsResponse:  # noqa: N802
        """Return the last lines of a UDF."""
        self._check_owner(current_caller(), request.name)
        found = self._registry.lines(request.name, request.after)
        return pb.UdfLogsResponse(
            lines=[pb.UdfLogLine(number=each.number, time=each.time_ns, text=each.text) for each in found]
        )

    def sync(self, request: pipeline_service_pb2.SyncUdfsRequest) -> pipeline_service_pb2.SyncUdfsResponse:
        """Take a report of the driver, and return what is to run."""
        self._registry.report(
            map(messages.decode_definition, request.declared),
            map(messages.decode_status, request.statuses),
            {each.name: [(line.time, line.text) for line in each.lines] for each in request.logs},
            now_ns=self._clock.wall_ns(),
        )
        found = self._registry.registrations.values()
        return pipeline_service_pb2.SyncUdfsResponse(registrations=map(messages.encode_registration, found))

    def _check_owner(self, caller: Caller | None, name: str) -> None:
        known = self._registry.registrations.get(name)
        if known is not None and known.client_id and not access.owns(caller, known.client_id):
            raise NotFound(f"UDF {name[:64]!r} is not known")
