"""RPCs of UDFs: those for clients, and the report of the Spark driver."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from dexorder_common.model.errors import NotAllowed, NotFound, Unavailable
from dexorder_common.model.udf import UdfCommand, UdfDefinition
from dexorder_common.rpc import udf_messages as messages
from dexorder_common.rpc.identity import Caller, current_caller
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as pb
from dexorder_relay import access
from dexorder_relay.engine import RelayEngine
from dexorder_relay.requests.queries import fitting, page_by_name, page_size, read_token
from dexorder_relay.state.changes import ValueStored
from dexorder_relay.state.udfs import MAX_UDFS, Listed

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class UdfRpcs:
    """RPCs of ``dexorder udf start|stop|list|logs``."""

    engine: RelayEngine

    async def StartUdf(self, request: pb.StartUdfRequest, _: object) -> pb.StartUdfResponse:
        """Start a UDF; only an admin may name a command that it runs."""
        caller, name, context = current_caller(), request.udf.name, self.engine.context
        context.store.check_space()
        context.quotas.submit(caller, now_ns=context.clock.monotonic_ns())
        self._check_owner(caller, name)
        definition = None if messages.names_only(request.udf) else messages.decode_definition(request.udf)
        if definition is not None and definition.command != UdfCommand():
            access.check_admin(caller, "start a UDF with its own command")
        known = self.engine.udfs.registrations.get(name)
        _check_output(caller, definition or (known.definition if known else None))
        if known is None and caller is not None:
            context.quotas.start_udf(caller, self.engine.udfs.owned(caller.client_id))
        made = self.engine.udfs.start(
            name,
            definition,
            anew=request.reset_state,
            client_id=caller.client_id if caller else "",
            wall_ns=context.clock.wall_ns(),
        )
        if made is not None:
            self.engine.udfs.keep(made)
            log.info("UDF started", udf=name, generation=made.generation, client_id=made.client_id)
        changes = [ValueStored(made)] if made else []
        await context.store.commit(changes)  # also without a change: the start before is on disk then
        known = self.engine.udfs.registrations.get(name)
        return pb.StartUdfResponse(generation=known.generation if known else 0)

    async def StopUdf(self, request: pb.StopUdfRequest, _: object) -> pb.StopUdfResponse:
        """Stop a UDF."""
        caller, context = current_caller(), self.engine.context
        context.store.check_space()
        context.quotas.submit(caller, now_ns=context.clock.monotonic_ns())
        self._check_owner(caller, request.name)
        made = self.engine.udfs.stop(request.name)
        self.engine.udfs.keep(made)
        log.info("UDF stopped", udf=request.name)
        await context.store.commit([ValueStored(made)])
        return pb.StopUdfResponse()

    async def ListUdfs(self, request: pb.ListUdfsRequest, _: object) -> pb.ListUdfsResponse:
        """Return a page of the caller's UDFs and the file's UDFs; the environment of a command only to admins."""
        caller = current_caller()
        listed = [each for each in self.engine.udfs.listed() if each.declared or access.owns(caller, each.client_id)]
        encode = _encode_listed if access.is_admin(caller) else _encode_for_client
        found, token = page_by_name(
            listed, lambda each: each.status.name, encode, request.page_size, request.page_token
        )
        return pb.ListUdfsResponse(udfs=found, reported_ns=self.engine.udfs.reported_ns or None, next_page_token=token)

    async def ListUdfLogs(self, request: pb.ListUdfLogsRequest, _: object) -> pb.ListUdfLogsResponse:
        """Return a page of the last lines of a UDF."""
        self._check_owner(current_caller(), request.name)
        size, after = page_size(request.page_size), read_token(request.page_token) or request.after_number
        found = self.engine.udfs.lines(request.name, after)
        lines = fitting(
            pb.UdfLogLine(number=each.number, time_ns=each.time_ns, text=each.text) for each in found[:size]
        )
        token = str(lines[-1].number) if len(found) > len(lines) else ""
        return pb.ListUdfLogsResponse(lines=lines, next_page_token=token)

    def _check_owner(self, caller: Caller | None, name: str) -> None:
        """Raise an error unless a UDF is the caller's or new. Those of the Spark host's file belong to admins."""
        if access.is_admin(caller):
            return
        udfs = self.engine.udfs
        if not udfs.reported_ns:
            raise Unavailable("the Spark driver has not reported the UDFs of its file since the relay's start")
        if name in udfs.declared:
            raise NotAllowed(
                f"UDF {name!r} is declared in the Spark host's file and belongs to admins; "
                f"start one under another name with program {name!r}"
            )
        known = udfs.registrations.get(name)
        if known is not None and not access.owns(caller, known.client_id):
            raise NotFound(f"UDF {name[:64]!r} is not known")


def _encode_listed(each: Listed) -> pb.ListedUdf:
    known = each.definition
    return pb.ListedUdf(
        udf=pb.Udf(name=each.status.name) if known is None else messages.encode_definition(known),
        status=messages.encode_status(each.status),
        declared=each.declared,
        client_id=each.client_id,
    )


def _encode_for_client(each: Listed) -> pb.ListedUdf:
    found = _encode_listed(each)
    if found.udf.command.HasField("process"):
        found.udf.command.process.env.clear()
    return found


def _check_output(caller: Caller | None, definition: UdfDefinition | None) -> None:
    if definition is not None:
        access.check_topic(caller, "output.topic", definition.output.topic)
        access.check_user(caller, "output.user_id", definition.output.user_id)


@dataclass(frozen=True)
class UdfReports:
    """RPCs for the Spark driver."""

    engine: RelayEngine

    async def SyncUdfs(self, request: ppb.SyncUdfsRequest, _: object) -> ppb.SyncUdfsResponse:
        """Take a part of a report of the driver; return a page of UDFs to run for the last part, or for a token."""
        registry = self.engine.udfs
        if request.page_token:
            return self._wanted(request.page_token)
        registry.report(
            map(messages.decode_definition, request.declared),
            map(messages.decode_status, request.statuses),
            {each.name: [(line.time_ns, line.text) for line in each.lines] for each in request.logs},
            now_ns=self.engine.context.clock.wall_ns(),
            part=request.part,
            more=request.more,
        )
        return ppb.SyncUdfsResponse() if request.more else self._wanted("")

    def _wanted(self, token: str) -> ppb.SyncUdfsResponse:
        known = sorted(self.engine.udfs.registrations.values(), key=lambda each: each.name)
        found, token = page_by_name(known, lambda each: each.name, messages.encode_registration, MAX_UDFS, token)
        return ppb.SyncUdfsResponse(registrations=found, next_page_token=token)
