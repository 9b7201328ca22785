"""Command line of ``dexorder events``. The code of a command is in `events`, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dexorder.cli.terminal.options import Count, Json, JsonLines, Limit, choices, example
from dexorder.cli.terminal.reporting import WithoutPythonsTypes

events_app = typer.Typer(cls=WithoutPythonsTypes, no_args_is_help=True, help="User events: follow, send and look up.")

PRIORITIES = ("INFORMATIONAL", "NORMAL", "CRITICAL")

Gateway = Annotated[
    str | None,
    typer.Option(help="host:port of the gateway; default DEXORDER_GATEWAY_ADDRESS, else the suite on this machine"),
]


@events_app.command(epilog=example("dexorder events tail --token-file token.jwt --count 10"))
def tail(
    token_file: Annotated[Path | None, typer.Option(help="File with the user's JWT, read at each connection")] = None,
    user: Annotated[str, typer.Option(help="The user; requires --key")] = "",
    key: Annotated[Path | None, typer.Option(help="Private key to sign a JWT for --user; for development")] = None,
    cursor: Annotated[Path | None, typer.Option(help="File that stores the position; continue from it")] = None,
    peek: Annotated[bool, typer.Option("--peek", help="Do not acknowledge the events as received")] = False,
    count: Count = None,
    as_json: JsonLines = False,
    gateway: Gateway = None,
) -> None:
    """Print a user's events as they arrive, until Ctrl-C; a broken session is resumed."""
    from dexorder.cli.events import commands as command

    if (token_file is None) == (key is None) or bool(user) != bool(key):
        raise typer.BadParameter("use either --token-file, or --user with --key")
    token = command.token_source(token_file, user, key)
    command.tail(token, cursor, receive=not peek, count=count, as_json=as_json, gateway=gateway)


@events_app.command(epilog=example("dexorder events send alice ORDER_FILLED '{\"order\": 7}' --channel EMAIL"))
def send(
    user_id: Annotated[str, typer.Argument(metavar="USER")],
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="Name, for example ORDER_FILLED, or number")],
    payload: Annotated[str, typer.Argument(help="JSON object; - is stdin")] = "{}",
    priority: Annotated[
        str, typer.Option(help="INFORMATIONAL, NORMAL or CRITICAL", autocompletion=choices(*PRIORITIES))
    ] = "NORMAL",
    channel: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME, or NAME:active to use it only while the user is active; repeat in order of preference"
        ),
    ] = None,
    event_id: Annotated[str | None, typer.Option(help="Id of the event; default: a new one")] = None,
    zmq: Annotated[
        bool, typer.Option("--zmq", help="Publish over ZMQ as containers do, with DEXORDER_PUBLISHER_*; default: gRPC")
    ] = False,
    outbox: Annotated[Path | None, typer.Option(help="File of the outbox, with --zmq")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Longest wait for the final ack, in seconds")] = 120.0,
    as_json: JsonLines = False,
    gateway: Gateway = None,
) -> None:
    """Publish an event and print its acks until the final one. Exit code 0 if it was delivered or sent."""
    from dexorder.cli.events import commands as command

    drafted = command.draft(user_id, event_type, payload, priority, channel or [], event_id)
    if zmq:
        raise typer.Exit(command.send_zmq(drafted, outbox, timeout, as_json))
    raise typer.Exit(command.send_grpc(drafted, gateway, timeout, as_json))


@events_app.command(epilog=example("dexorder events show container-1 5f2c1e"))
def show(container: str, event_id: str, as_json: Json = False, gateway: Gateway = None) -> None:
    """Show one event with every delivery attempt; for staff."""
    from dexorder.cli.events import commands as command

    command.show(container, event_id, as_json, gateway)


@events_app.command("list", epilog=example("dexorder events list --user alice -n 50"))
def list_events(
    user: Annotated[str, typer.Option(help="Only events of this user")] = "",
    container: Annotated[str, typer.Option(help="Only events of this container")] = "",
    status: Annotated[str, typer.Option(help="Only events in this status: QUEUED, DELIVERED or ERROR")] = "",
    limit: Limit = 20,
    as_json: Json = False,
    gateway: Gateway = None,
) -> None:
    """List the newest events; for staff."""
    from dexorder.cli.events import commands as command

    if status.upper() not in ("", *command.STATUSES):
        raise typer.BadParameter(f"--status: {status!r} is not a status; use {', '.join(command.STATUSES)}")
    command.list_events(user, container, status.upper(), limit, as_json, gateway)


@events_app.command(epilog=example("dexorder events token alice --key user.key"))
def token(
    user: str,
    key: Annotated[
        Path,
        typer.Option(help="Private key; `python -m dexorder_gateway.events.sessions.user_tokens key` makes one"),
    ],
    seconds: Annotated[int, typer.Option(min=1, help="Lifetime of the token")] = 900,
    audience: Annotated[str, typer.Option(help="DEXORDER_EVENTS_JWT_AUDIENCE of the gateway")] = "dexorder",
) -> None:
    """Sign a JWT for a user and print it; for development."""
    from dexorder.cli.events import commands as command

    command.print_token(user, key, seconds, audience)
