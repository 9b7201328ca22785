"""Generation of docs/settings.md from the settings classes and of the table of channels in docs/gateway-events.md.

``--check`` fails if one of them is stale.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder.events.config import PublisherSettings
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.rpc.channel import ChannelSettings, UdfChannelSettings
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_exchange_sim.config import SimSettings
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.channels.registry import SPECS
from dexorder_gateway.events.config import EventsSettings
from dexorder_ingestor.config import IngestorSettings
from dexorder_relay.config import RelaySettings
from dexorder_spark.config import MaintenanceSettings, SparkSettings
from dexorder_udsource.config import UdsourceSettings

PAGE = Path(__file__).with_name("settings.md")
CHANNELS_PAGE = Path(__file__).with_name("gateway-events.md")
CHANNELS = re.compile(r"(?<=<!-- channels -->\n).*(?=<!-- /channels -->)", re.DOTALL)
SERVICES: tuple[tuple[str, type[BaseSettings]], ...] = (
    ("relay", RelaySettings),
    ("ingestor", IngestorSettings),
    ("gateway", GatewaySettings),
    ("user events at the gateway", EventsSettings),
    ("user events: a container's publisher", PublisherSettings),
    ("udsource", UdsourceSettings),
    ("Spark", SparkSettings),
    ("Spark's maintenance of the tables", MaintenanceSettings),
    ("the simulated exchange", SimSettings),
)
INTRODUCTION = """# Settings

Settings are environment variables, which the part's `config.py` reads at start; an invalid value ends the process with
a line that names the variable. Lists and maps are JSON. `make docs` writes this page from the settings classes.
"""
TRACES = """## traces

OpenTelemetry's own variables, first of all `OTEL_EXPORTER_OTLP_ENDPOINT`, without which nothing is traced:
[Trace a request](tracing.md).
"""


def documented(settings: type[BaseSettings]) -> dict[str, str]:
    """Return the docstring of each field, base classes first."""
    found: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        if issubclass(cls, BaseSettings) and cls is not BaseSettings and "__annotations__" in vars(cls):
            (tree,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
            assert isinstance(tree, ast.ClassDef)
            for field, text in zip(tree.body, tree.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
                    found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def rows(settings: type[BaseSettings], leave_out: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield one table row for each field.

    Raises:
        KeyError: A field has no docstring.
    """
    prefix, texts = settings.model_config.get("env_prefix", ""), documented(settings)
    own = vars(settings).get("__annotations__", {})
    for name, field in sorted(settings.model_fields.items(), key=lambda each: each[0] not in own):
        if name not in leave_out:
            variable = str(field.validation_alias or prefix + name).upper()
            text = texts[name].replace("|", "\\|")
            yield f"| `{variable}` | {default(field)} | {text} |"


def default(field: Any) -> str:
    """Return the default as it is written in the environment; empty if there is none."""
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is PydanticUndefined or value is None or value in ("", (), {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def section(title: str, settings: type[BaseSettings], leave_out: frozenset[str] = frozenset()) -> str:
    """Return a heading and its table."""
    return "\n".join(
        [f"## {title}\n", "| variable | default | description |", "| --- | --- | --- |", *rows(settings, leave_out), ""]
    )


def page() -> str:
    """Return the whole page."""
    common = frozenset(ServiceSettings.model_fields)
    parts = [INTRODUCTION]
    for title, settings in SERVICES:
        shared = {name for name in common if settings.model_fields.get(name) is not None and _same(settings, name)}
        parts.append(section(title, settings, frozenset(shared)))
    parts.append(section("every gRPC service (`<PART>`: RELAY, INGESTOR, GATEWAY, UDSOURCE, SPARK)", _Common))
    parts.append(section("the catalog: relay, Spark, clients", CatalogSettings))
    parts.append(section("channels: clients of our services", ChannelSettings))
    parts.append(
        section("channels to UDFs on other hosts: the Spark driver", UdfChannelSettings, frozenset({"allow_insecure"}))
    )
    parts.append(TRACES)
    return "\n".join(parts)


def channels_page() -> str:
    """Return the page of user events with a table of the channels."""
    rows = ["| channel | set up | the user's contact |", "| --- | --- | --- |"]
    for channel, spec in SPECS.items():
        contact = ", ".join(f"`{field.name}`" for field in spec.contacts) + (f"; {spec.needs}" if spec.needs else "")
        rows.append(f"| {channel.name} | {spec.setup} | {contact} |")
    table = "\n".join([*rows, ""])
    return CHANNELS.sub(lambda _: table, CHANNELS_PAGE.read_text())


def _same(settings: type[BaseSettings], name: str) -> bool:
    mine, base = settings.model_fields[name], ServiceSettings.model_fields[name]
    return (mine.default, mine.validation_alias) == (base.default, base.validation_alias)


class _Common(ServiceSettings):
    model_config = SettingsConfigDict(**ServiceSettings.model_config | {"env_prefix": "DEXORDER_<PART>_"})


def main() -> int:
    """Write or check the pages; return the exit status."""
    pages = {PAGE: page(), CHANNELS_PAGE: channels_page()}
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in pages.items() if not path.is_file() or path.read_text() != text]
        print(f"stale: docs/{', docs/'.join(stale)}; run make docs" if stale else "docs/settings.md is fresh")
        return 1 if stale else 0
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    for variable in [name for name in os.environ if name.startswith("DEXORDER_")]:
        del os.environ[variable]
    sys.exit(main())
