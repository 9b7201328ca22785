"""UDFs that are to run, from the file of the Spark host and the relay's registrations. Pure but for reading the file.

Only a person with access to the Spark host decides which commands run there: a registration names an entry of the file.
A registration with a command is refused unless ``DEXORDER_SPARK_UDF_ANY_COMMAND`` is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from dexorder_common.config import BadSettings
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.udf import (
    UdfCommand,
    UdfDefinition,
    UdfRegistration,
    check_udf_name,
    definition_from,
)
from dexorder_udf.spec import UdfSpec

if TYPE_CHECKING:
    from dexorder_spark.config import SparkSettings


@dataclass(frozen=True)
class Declared:
    """An entry of the file; ``starts`` is false for one that only a call starts."""

    definition: UdfDefinition
    starts: bool


@dataclass(frozen=True)
class Wanted:
    """A UDF that is to run. Two are the same run if they are equal.

    Attributes:
        definition: With the command of the program that it named.
        fault: Why it cannot run; empty if it can.
    """

    definition: UdfDefinition
    generation: int = 0
    since_generation: int = 0
    fault: str = ""


def declared_udfs(settings: SparkSettings) -> dict[str, Declared]:
    """Return the entries of the file that the settings name; BadSettings if it is invalid."""
    try:
        return read_declared(settings.udfs) if settings.udfs else {}
    except ValueError as error:
        raise BadSettings(f"DEXORDER_SPARK_UDFS: {error}") from None


def read_declared(path: Path) -> dict[str, Declared]:
    """Read the file; ValueError names the entry and the key at fault."""
    try:
        found = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not YAML: {error}") from error
    return parse_declared(found, path.name)


def parse_declared(found: object, file_name: str) -> dict[str, Declared]:
    """Return the entries of a file's content; ValueError as ``read_declared``."""
    entries = found.get("udfs", {}) if isinstance(found, dict) else None
    if not isinstance(found, dict) or set(found) - {"udfs"} or not isinstance(entries, dict):
        raise ValueError(f"{file_name} has other keys than udfs, or udfs is not a map from names to definitions")
    declared = {}
    for key, entry in entries.items():
        try:
            if not isinstance(entry, dict):
                raise InvalidRequest(f"UDF {key}: the entry is not a map")
            starts = entry.get("start", True)
            if not isinstance(starts, bool):
                raise InvalidRequest(f"UDF {key}: start {starts!r} is not true or false")
            given = {name: value for name, value in entry.items() if name != "start"}
            declared[str(key)] = Declared(definition_from(str(key), given), starts)
        except InvalidRequest as error:
            raise ValueError(f"{file_name}: {error}") from None
    for each in declared.values():
        program = each.definition.program
        if program and (program not in declared or declared[program].definition.program):
            raise ValueError(
                f"{file_name}: UDF {each.definition.name}: program {program!r} is not an entry with a command"
            )
    return declared


def wanted(
    declared: Mapping[str, Declared], registrations: Iterable[UdfRegistration], *, any_command: bool
) -> dict[str, Wanted]:
    """Return the UDFs that are to run, by name; the ones that cannot have a fault."""
    found = {name: Wanted(_resolved(each.definition, declared)) for name, each in declared.items() if each.starts}
    for each in registrations:
        found.pop(each.name, None)
        if not each.stopped:
            found[each.name] = _registered(each, declared, any_command)
    return found


def _registered(each: UdfRegistration, declared: Mapping[str, Declared], any_command: bool) -> Wanted:
    definition, fault = each.definition, ""
    if definition is None:
        own = declared.get(each.name)
        definition = own.definition if own else UdfDefinition(each.name, each.name)
    try:
        check_udf_name(each.name)
        if definition.program and definition.program not in declared:
            known = ", ".join(sorted(declared)) or "none"
            fault = (
                f"program {definition.program!r} is not in DEXORDER_SPARK_UDFS of the Spark host; in it are: {known}"
            )
        elif each.definition is not None and definition.command != UdfCommand() and not any_command:
            fault = (
                "a command of its own is refused on this Spark host; name an entry of its file as the program, or set"
                " DEXORDER_SPARK_UDF_ANY_COMMAND=1 there"
            )
        else:
            definition = _resolved(definition, declared)
            definition.check()
    except InvalidRequest as error:
        fault = str(error)
    return Wanted(definition, each.generation, each.since_generation, fault)


def _resolved(definition: UdfDefinition, declared: Mapping[str, Declared]) -> UdfDefinition:
    """Return the definition with the command and the missing options of its program."""
    if not definition.program:
        return definition
    program = declared[definition.program].definition
    if program.program:
        program = declared[program.program].definition
    options = {**program.options, **definition.options}
    return replace(definition, program="", command=program.command, options=options)


_CONNECT_SECONDS = 2.0
"""Time after which a UDF that nobody serves is shown as WAITING; it is tried again without an end."""


def spec_of(definition: UdfDefinition, frame_limit_bytes: int) -> UdfSpec:
    """Return how the host runs a UDF."""
    command = definition.command
    return UdfSpec(
        name=definition.name,
        prog=command.prog or None,
        args=command.args,
        env=command.env,
        socket=command.socket or None,
        grpc_target=command.grpc or None,
        options={name: list(values) for name, values in definition.options.items()},
        node=definition.name,
        timeout_seconds=definition.timeout_seconds,
        answer_seconds=definition.answer_seconds,
        connect_seconds=_CONNECT_SECONDS,
        frame_limit_bytes=frame_limit_bytes,
    )
