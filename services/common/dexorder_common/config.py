"""Settings from the environment: how they are read, addresses, folders. Only settings classes read the environment."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

S = TypeVar("S", bound=BaseSettings)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``tcp://host:port``; an IPv6 host is in brackets."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach the address."""
    if address.startswith(("unix:", "ipc:", "inproc:")):
        return True
    host = split_address(address)[0]
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def file_uri(path: Path) -> str:
    """Return the ``file://`` URI of an absolute path as pyiceberg and Iceberg read it.

    Neither decodes ``%20``: with ``Path.as_uri`` tables of a folder ``a b`` would be in a folder ``a%20b``.
    """
    return f"file://{path}"


def state_folder() -> Path:
    """Return ``dexorder`` below ``XDG_STATE_HOME`` or ``~/.local/state``, this user's own folder; it may not exist."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "dexorder")


class BadSettings(ValueError):
    """Invalid settings; one line for each problem, with its variable, or its file and the place in it."""


def read_settings(settings: type[S], **overrides: Any) -> S:
    """Read settings from the environment.

    Raises:
        BadSettings: A value is invalid; the message names the variable and, unless the class hides it, the value.
    """
    try:
        return settings(**overrides)
    except ValidationError as error:
        prefix = settings.model_config.get("env_prefix", "")
        hidden = settings.model_config.get("hide_input_in_errors", False)
        lines = []
        for problem in error.errors():
            cause = problem.get("ctx", {}).get("error")
            if isinstance(cause, BadSettings):  # from a file; its text has the places
                lines.append(str(cause))
                continue
            name = ".".join(str(part) for part in problem["loc"])
            variable = name if name.startswith("DEXORDER_") else f"{prefix}{name or '*'}".upper()
            got = f" (got {problem.get('input')!r})" if name and not hidden else ""
            lines.append(f"{variable}: {problem['msg']}{got}")
        raise BadSettings("bad settings\n  " + "\n  ".join(lines)) from None


def load_settings(settings: type[S], **overrides: Any) -> S:
    """Read settings as `read_settings` does; an invalid value ends the process with its message."""
    try:
        return read_settings(settings, **overrides)
    except BadSettings as error:
        raise SystemExit(str(error)) from None
