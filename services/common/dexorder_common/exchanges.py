"""Exchanges file: the venues, and how ccxt reaches them. The relay and the ingestor read it; some are shipped."""

from __future__ import annotations

from importlib import resources
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml
from pydantic import Field, ValidationError, field_validator

from dexorder_common.storage.watched_file import FileModel


def _ccxt_has(exchange: str) -> bool:
    # ccxt has one module for each venue; importing all of it for its list takes seconds that only the ingestor needs
    package = find_spec("ccxt")
    folders = package.submodule_search_locations if package else None
    named = exchange.isidentifier() and not exchange.startswith("_")
    return named and any((Path(folder) / "async_support" / f"{exchange}.py").is_file() for folder in folders or ())


class Slots(FileModel):
    """Number of jobs of each type that one ingestor runs at once for a venue."""

    historical: int = Field(default=8, ge=0)
    realtime: int = Field(default=16, ge=0)


class Exchange(FileModel):
    """Settings of one venue."""

    ccxt: str
    """Id of the exchange in ccxt."""
    rest_url: str | None = None
    """Replaces scheme, host and port of every http(s) URL in ccxt's ``urls['api']``; paths are kept."""
    ws_url: str | None = None
    """Replaces the same parts of ws(s) URLs."""
    other_hosts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By ``host[:port]`` of REST URLs, others that serve the same; repeated queries for evidence use them in turn."""
    archive: str | None = None
    """URL of the server with the exchange's files of whole days, as ``https://data.example.com``; none by default."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Merged into ccxt's ``options``."""
    rate_per_second: float | None = Field(default=None, gt=0)
    """Calls per second of all ingestors on one host together, in ccxt's cost units; default: ccxt's own limit."""
    burst: float = Field(default=1.0, ge=0)
    """Unused cost units that may accumulate."""
    slots: Slots = Slots()

    @field_validator("other_hosts")
    @classmethod
    def _hosts(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for host in (*value, *(host for hosts in value.values() for host in hosts)):
            if not host or "/" in host or host != host.strip():
                raise ValueError(f"{host!r} is not a host; use api.example.com or 127.0.0.1:9000, without https://")
        return value

    @field_validator("archive")
    @classmethod
    def _server(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "https://host")
        is_server = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0  # ValueError: no port
        if not is_server or "@" in parts.netloc or parts.path or parts.query or parts.fragment:
            raise ValueError(f"{value!r} is not the URL of a server; use https://data.example.com, without a path")
        return value

    @field_validator("ccxt")
    @classmethod
    def _known_to_ccxt(cls, value: str) -> str:
        if not _ccxt_has(value):
            raise ValueError(f"{value!r} is not an exchange of ccxt {version('ccxt')}")
        return value


class Exchanges(FileModel):
    """Content of the file, by venue."""

    exchanges: dict[str, Exchange] = Field(min_length=1)


def exchanges_file(given: Path) -> Path:
    """Return the file itself, or the shipped file of this name, as in ``binance`` and ``sim``.

    Raises:
        ValueError: It is neither; the message lists the names.
    """
    if given.is_file():
        return given
    shipped = {
        Path(each.name).stem: Path(str(each))
        for each in (resources.files("dexorder_common") / "shipped_exchanges").iterdir()
    }
    if str(given) not in shipped:
        raise ValueError(f"{str(given)!r} is neither a file nor one of {', '.join(sorted(shipped))}")
    return shipped[str(given)]


def load_exchanges(given: Path) -> dict[str, Exchange]:
    """Read and check the file, or the shipped file of this name.

    Raises:
        ValueError: There is none, or it is not YAML, has an unknown key or an exchange that ccxt lacks; the message
            names the place.
    """
    path = exchanges_file(given)
    try:
        return Exchanges.model_validate(yaml.safe_load(path.read_text())).exchanges
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"{path.name}: {problems}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not YAML: {error}") from error


def override_urls(urls: Any, exchange: Exchange) -> Any:
    """Return ccxt's ``urls['api']`` (nested dicts of text) with the hosts that the exchange's settings give."""
    if isinstance(urls, dict):
        return {key: override_urls(value, exchange) for key, value in urls.items()}
    if not isinstance(urls, str):
        return urls
    target = {"http": exchange.rest_url, "ws": exchange.ws_url}.get(urlsplit(urls).scheme.removesuffix("s"))
    if target is None:
        return urls
    host, path = urlsplit(target), urlsplit(urls)
    return urlunsplit((host.scheme, host.netloc, path.path, path.query, path.fragment))
