"""Generation of docs/limits.md: what each caller may use of each resource, from docs/limits.toml and the code.

A row of limits.toml names where the code has the limit, so the page shows the value that is in force by default. Roles
come from the tables of the servers. ``--check`` fails if the page is stale.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from pydantic_settings import BaseSettings

from dexorder.supervisor.plan import Ports
from dexorder_common.messaging.frames import PORTS as FRAME_PORTS
from dexorder_common.rpc.identity import SERVER_INFO, STAFF, Role
from dexorder_gateway.events.service import OWN_IDENTITY
from dexorder_gateway.events.service import ROLES as EVENT_ROLES
from dexorder_protos.dexorder.events.v1 import event_service_pb2
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2
from dexorder_protos.dexorder.udf.v1 import udf_service_pb2
from dexorder_protos.kafkapixy import kafkapixy_pb2
from dexorder_protos.source.v1 import source_pb2
from dexorder_relay.access import ROLES as RELAY_ROLES
from dexorder_relay.service.services import SERVICES

PAGE, ROWS = Path(__file__).with_name("limits.md"), Path(__file__).with_name("limits.toml")
MODULES = (
    *(messages for messages, _ in SERVICES.values()),
    event_service_pb2,
    kafkapixy_pb2,
    record_service_pb2,
    source_pb2,
    maintenance_service_pb2,
    server_info_service_pb2,
    udf_service_pb2,
)
ANYONE = {SERVER_INFO: "every known caller"}
USERS = "users, by their JWT"
UDF = "dexorder.udf.v1.UdfService"
INTRODUCTION = """# Limits

Who may use how much of what, and what happens above it. `make docs` writes this page from the code and
`docs/limits.toml`; a test fails for an RPC, a frame or a port without a row, and each row names the test that attacks
it. `tests/limit_breaks.toml` takes each limit away, and `make nightly` shows that the test notices it. Values are the
defaults. [Settings](settings.md) change those with a variable, and an entry of the
[callers file](security.md#quotas) changes the quotas of one client. Limits of clients need
[identity](security.md#identity): without it, every process that reaches a port is trusted.

"""


@dataclass(frozen=True)
class Limit:
    """One row.

    Attributes:
        resource: What is taken.
        of: By whom it is counted.
        value: Where the code has it, ``module:NAME`` or ``module:Class.field``; empty if access alone is limited.
        above: What happens above it.
        doors: RPCs (``Service.Rpc``), frames (``5567 WorkerReady``) and ports (``port relay``) that take it; ``*`` for
            every RPC, which is no row of its own for any.
        test: The test that attacks it; empty only where ``above`` says that there is none, and why.
        further: Tests that attack it at the doors that ``test`` leaves out.
    """

    resource: str
    of: str
    above: str
    doors: tuple[str, ...]
    test: str = ""
    value: str = ""
    unit: str = ""
    further: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """Return all tests that attack it."""
        return (self.test, *self.further) if self.test else ()


def limits() -> list[Limit]:
    """Return the rows of the file."""
    found = tomllib.loads(ROWS.read_text())["limit"]
    return [Limit(**{**each, **{name: tuple(each.get(name, ())) for name in ("doors", "further")}}) for each in found]


def services() -> Iterator[ServiceDescriptor]:
    """Yield every service of the suite."""
    for module in MODULES:
        yield from module.DESCRIPTOR.services_by_name.values()


def rpcs() -> dict[str, str]:
    """Return who may call each RPC, by ``Service.Rpc``."""
    return {f"{each.name}.{name}": _callers(each.full_name) for each in services() for name in each.methods_by_name}


def frames() -> list[str]:
    """Return every frame that a peer may send to a port of ZeroMQ, or get from one."""
    return [f"{port} {name}" for port, codecs in FRAME_PORTS.items() for codec in codecs for name in codec.names]


def ports() -> list[str]:
    """Return every port of the suite, and the gateway's HTTP API, which is off by default."""
    return [f"port {name}" for name in (*Ports.__dataclass_fields__, "gateway_http")]


def value_of(limit: Limit) -> str:
    """Return the value of a limit, with its variable if it is a setting."""
    if not limit.value:
        return ""
    module, _, name = limit.value.partition(":")
    holder, _, field = name.partition(".")
    found: Any = getattr(import_module(module), holder)
    variable = ""
    if isclass(found) and issubclass(found, BaseSettings):
        variable = f" `{found.model_config.get('env_prefix', '')!s}{field}`".upper()
        found = found.model_fields[field].default
    shown = f"{found:,}" if isinstance(found, int | float) else str(found)
    return f"{shown} {limit.unit}".strip() + variable


def _callers(service: str) -> str:
    if service in ANYONE:
        return ANYONE[service]
    if service in OWN_IDENTITY:
        return USERS
    if service == UDF:
        return "the Spark driver; served by a user's program"
    known: Mapping[str, Any] = {**RELAY_ROLES, **EVENT_ROLES}
    roles = known.get(service, STAFF)
    return "every role" if set(roles) == set(Role) else ", ".join(sorted(role.value for role in roles))


def page() -> str:
    """Return the whole page."""
    rows, callers = limits(), rpcs()
    lines = [
        "## Resources\n",
        "| resource | of each | limit | above it | attacked by |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.resource} | {r.of} | {value_of(r)} | {r.above} | {', '.join(f'`{each}`' for each in r.tests)} |"
        for r in rows
    ]
    lines += ["", "## Calls\n", "| call | callers | limits |", "| --- | --- | --- |"]
    lines += [f"| {rpc} | {who} | {_named(rows, rpc)} |" for rpc, who in callers.items()]
    for title, doors in (("Frames", frames()), ("Ports", ports())):
        lines += ["", f"## {title}\n", f"| {title[:-1].lower()} | limits |", "| --- | --- |"]
        lines += [f"| {door.removeprefix('port ')} | {_named(rows, door)} |" for door in doors]
    return INTRODUCTION + "\n".join([*lines, ""])


def _named(rows: list[Limit], door: str) -> str:
    return "; ".join(row.resource for row in rows if door in row.doors)


def main() -> int:
    """Write or check the page; return the exit status."""
    if "--check" in sys.argv[1:]:
        stale = not PAGE.is_file() or PAGE.read_text() != page()
        print("docs/limits.md is stale; run make docs" if stale else "docs/limits.md is fresh")
        return int(stale)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
