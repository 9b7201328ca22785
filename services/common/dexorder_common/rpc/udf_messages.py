"""Conversion between the values of ``dexorder_common/model/udf.py`` and protobuf messages, for relay, Spark and client.

Decoding does not validate: ``UdfDefinition.check`` does.
"""

from __future__ import annotations

from dexorder_common.model.udf import (
    DEFAULT_ANSWER_S,
    DEFAULT_TIMEOUT_S,
    OHLC,
    UdfCommand,
    UdfDefinition,
    UdfInput,
    UdfOutput,
    UdfRegistration,
    UdfState,
    UdfStatus,
)
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as pb


def encode_definition(definition: UdfDefinition) -> pb.Udf:
    """Return the message of a definition."""
    command, given, output = definition.command, definition.input, definition.output
    return pb.Udf(
        name=definition.name,
        program=definition.program,
        command=_encode_command(command),
        options=[pb.UdfOption(name=name, values=values) for name, values in sorted(definition.options.items())],
        input=pb.UdfInput(
            table=given.table,
            tickers=given.tickers,
            period_seconds=given.periods,
            since_ns=given.since_ns,
            history=given.history,
            window_seconds=given.window_seconds,
        ),
        output=pb.UdfOutput(topic=output.topic, user_id=output.user_id, title=output.title),
        timeout_ms=round(definition.timeout_seconds * 1_000),
        answer_timeout_ms=round(definition.answer_seconds * 1_000),
    )


def decode_definition(message: pb.Udf) -> UdfDefinition:
    """Return a definition."""
    command, given, output = message.command, message.input, message.output
    return UdfDefinition(
        message.name,
        message.program,
        UdfCommand(
            command.process.prog,
            tuple(command.process.args),
            dict(command.process.env),
            command.socket,
            command.grpc,
        ),
        {each.name: tuple(each.values) for each in message.options},
        UdfInput(
            given.table or OHLC,
            tuple(given.tickers),
            tuple(given.period_seconds),
            given.since_ns if given.HasField("since_ns") else None,
            given.history,
            given.window_seconds,
        ),
        UdfOutput(output.topic, output.user_id, output.title),
        message.timeout_ms / 1_000 or DEFAULT_TIMEOUT_S,
        message.answer_timeout_ms / 1_000 or DEFAULT_ANSWER_S,
    )


def _encode_command(command: UdfCommand) -> pb.UdfCommand | None:
    if command == UdfCommand():
        return None
    if command.socket:
        return pb.UdfCommand(socket=command.socket)
    if command.grpc:
        return pb.UdfCommand(grpc=command.grpc)
    return pb.UdfCommand(process=pb.UdfProcess(prog=command.prog, args=command.args, env=dict(command.env)))


def names_only(message: pb.Udf) -> bool:
    """Return whether no field but the name is set."""
    return message == pb.Udf(name=message.name)


def encode_registration(registration: UdfRegistration) -> pb.UdfRegistration:
    """Return the message of a registration."""
    definition = registration.definition
    return pb.UdfRegistration(
        name=registration.name,
        generation=registration.generation,
        stopped=registration.stopped,
        reset_generation=registration.since_generation,
        definition=None if definition is None else encode_definition(definition),
        client_id=registration.client_id,
    )


def decode_registration(message: pb.UdfRegistration) -> UdfRegistration:
    """Return a registration."""
    return UdfRegistration(
        message.name,
        message.generation,
        message.stopped,
        message.reset_generation,
        decode_definition(message.definition) if message.HasField("definition") else None,
        message.client_id,
    )


def encode_status(status: UdfStatus) -> pb.UdfStatus:
    """Return the message of a status."""
    return pb.UdfStatus(
        name=status.name,
        state=pb.UdfState.ValueType(status.state),
        message=status.message,
        rows=status.rows,
        fed=status.fed,
        late=status.late,
        unread_records=status.lag,
        restarts=status.restarts,
        generation=status.generation,
    )


def decode_status(message: pb.UdfStatus) -> UdfStatus:
    """Return a status; a state that this version does not know is UNKNOWN."""
    known = message.state in UdfState._value2member_map_
    return UdfStatus(
        message.name,
        UdfState(message.state) if known else UdfState.UNKNOWN,
        message.message,
        message.rows,
        message.fed,
        message.late,
        message.unread_records,
        message.restarts,
        message.generation,
    )
