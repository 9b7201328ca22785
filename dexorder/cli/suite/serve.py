"""``dexorder serve PART``: one part of the suite in this process, or the check of its settings."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import typer

from dexorder.cli.terminal.reporting import missing_package
from dexorder.errors import DexorderError
from dexorder_common.config import BadSettings, read_settings

_CATALOG = "dexorder_common.lake.catalog:CatalogSettings"


class ServedPart(NamedTuple):
    """A part that one process can be."""

    module: str
    """Its package, which ``python -m`` runs as well."""
    extra: str
    """Extra of the distribution that brings what the package imports."""
    settings: tuple[str, ...]
    """Settings that it reads at the start, as ``module:class``."""


PARTS = {
    "relay": ServedPart("dexorder_relay", "relay", ("dexorder_relay.config:RelaySettings", _CATALOG)),
    "ingestor": ServedPart("dexorder_ingestor", "ingestor", ("dexorder_ingestor.config:IngestorSettings",)),
    "gateway": ServedPart("dexorder_gateway", "gateway", ("dexorder_gateway.config:GatewaySettings",)),
    "udsource": ServedPart("dexorder_udsource", "udsource", ("dexorder_udsource.config:UdsourceSettings",)),
    "spark": ServedPart("dexorder_spark", "driver", ("dexorder_spark.config:SparkSettings", _CATALOG)),
    "sim": ServedPart("dexorder_exchange_sim", "ingestor", ("dexorder_exchange_sim.config:SimSettings",)),
}


def serve(part: str, flags: Sequence[str] = (), *, check: bool = False) -> None:
    """Run the part until SIGTERM; invalid settings end the process, with one line for each.

    Args:
        flags: Kafka-Pixy's own, for the gateway.
        check: Only read the settings, and print whether they are valid.

    Raises:
        typer.BadParameter: The suite does not have this part.
        DexorderError: A package that the part imports is not installed, or ``check`` has found invalid settings.
    """
    if part not in PARTS:
        raise typer.BadParameter(f"{part!r} is not one of {', '.join(PARTS)}", param_hint="PART")
    if flags and part != "gateway":
        raise typer.BadParameter(f"the {part} takes no {flags[0]!r}: only the gateway has flags, those of Kafka-Pixy")
    with _advised(part):
        if not check:
            sys.argv = [PARTS[part].module, *flags]
            runpy.run_module(PARTS[part].module, run_name="__main__", alter_sys=True)
        elif wrong := list(wrong_settings(part, flags)):
            raise DexorderError(f"{'; '.join(wrong)}: see docs/settings.md")
        else:
            typer.echo(f"the settings of the {part} are valid")


def wrong_settings(part: str, flags: Sequence[str] = ()) -> Iterator[str]:
    """Yield a line for each invalid setting of a part in the environment and the flags."""
    given: dict[str, Any] = {}
    if flags:
        from dexorder_gateway.pixy_flags import read_flags

        try:
            given["pixy_flags"] = read_flags(flags)
        except BadSettings as error:
            yield str(error)
            return
    for each in PARTS[part].settings:
        module, _, name = each.partition(":")
        try:
            read_settings(getattr(import_module(module), name), **given)
        except BadSettings as error:
            yield from (line.strip() for line in str(error).splitlines()[1:])


@contextmanager
def _advised(part: str) -> Iterator[None]:
    """Name the extra to install if the block lacks a package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (advice := missing_package(error, PARTS[part].extra)) is None:
            raise
        raise DexorderError(f"the {part} can't run: {advice}") from None
