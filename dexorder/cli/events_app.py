"""The commands of ``dexorder events``. What they do lies in `events`, which is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dexorder.cli.reporting import Json, reported

events_app = typer.Typer(no_args_is_help=True, help="User events: follow a user's, send one, see what became of them.")

Gateway = Annotated[
    str | None, typer.Option(help="host:port of the gateway; default DEXORDER_GATEWAY_ADDRESS, else 127.0.0.1:50053")
]


@events_app.command()
def tail(
    token_file: Annotated[
        Path | None, typer.Option(help="File with the user's JWT; read again at each connection")
    ] = None,
    user: Annotated[str, typer.Option(help="The user, with --key")] = "",
    key: Annotated[Path | None, typer.Option(help="Private key that signs a JWT for --user; for development")] = None,
    cursor: Annotated[Path | None, typer.Option(help="Keep the place in this file, and go on from it")] = None,
    peek: Annotated[bool, typer.Option("--peek", help="Only look: what is shown is not acked as received")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many events")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line")] = False,
    gateway: Gateway = None,
) -> None:
    """Show a user's events as they come, until Ctrl-C; a session that breaks goes on where it was."""
    from dexorder.cli import events as command

    if (token_file is None) == (key is None) or bool(user) != bool(key):
        raise typer.BadParameter("either --token-file, or --user and --key")
    with reported():
        token = command.token_source(token_file, user, key)
        command.tail(token, cursor, receive=not peek, count=count, as_json=as_json, gateway=gateway)


@events_app.command()
def send(
    user_id: Annotated[str, typer.Argument(metavar="USER")],
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="For example ORDER_FILLED, or a number")],
    payload: Annotated[str, typer.Argument(help="JSON object; - is stdin")] = "{}",
    priority: Annotated[str, typer.Option(help="INFORMATIONAL, NORMAL or CRITICAL")] = "NORMAL",
    channel: Annotated[
        list[str] | None, typer.Option(help="In the order to try; NAME:active only while the user is there; may repeat")
    ] = None,
    event_id: Annotated[str | None, typer.Option(help="Of the event; else a new one")] = None,
    zmq: Annotated[bool, typer.Option("--zmq", help="As containers do, by DEXORDER_PUBLISHER_*, not by gRPC")] = False,
    outbox: Annotated[Path | None, typer.Option(help="With --zmq: the outbox's file")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Stop waiting for the final ack after so many seconds")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line")] = False,
    gateway: Gateway = None,
) -> None:
    """Publish an event and show its acks until the final one; exit code 0 only if it was delivered or sent."""
    from dexorder.cli import events as command

    with reported():
        drafted = command.draft(user_id, event_type, payload, priority, channel or [], event_id)
        if zmq:
            code = command.send_zmq(drafted, outbox, timeout, as_json)
        else:
            code = command.send_grpc(drafted, gateway, timeout, as_json)
        raise typer.Exit(code)


@events_app.command()
def show(container: str, event_id: str, as_json: Json = False, gateway: Gateway = None) -> None:
    """One event with every attempt to deliver it; for staff."""
    from dexorder.cli import events as command

    with reported():
        command.show(container, event_id, as_json, gateway)


@events_app.command("list")
def list_events(
    user: Annotated[str, typer.Option(help="Only this user's")] = "",
    container: Annotated[str, typer.Option(help="Only this container's")] = "",
    status: Annotated[str, typer.Option(help="Only those QUEUED, DELIVERED or ERROR")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many")] = 20,
    as_json: Json = False,
    gateway: Gateway = None,
) -> None:
    """The newest events; for staff."""
    from dexorder.cli import events as command

    if status.upper() not in ("", *command.STATUSES):
        raise typer.BadParameter(f"--status {status} is none of {', '.join(command.STATUSES)}")
    with reported():
        command.list_events(user, container, status.upper(), limit, as_json, gateway)


@events_app.command()
def token(
    user: str,
    key: Annotated[
        Path, typer.Option(help="Private key; `python -m services.gateway.events.sessions.user_tokens key` makes one")
    ],
    seconds: Annotated[int, typer.Option(min=1, help="How long it is valid")] = 900,
    audience: Annotated[str, typer.Option(help="DEXORDER_EVENTS_JWT_AUDIENCE of the gateway")] = "dexorder",
) -> None:
    """Sign a JWT for a user; for development."""
    from dexorder.cli import events as command

    with reported():
        command.print_token(user, key, seconds, audience)
