"""Further markets of the simulated exchange, and exchanges files for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from dexorder_common.exchanges import exchanges_file


def further_symbols(count: int) -> list[str]:
    """Return the simulated exchange's further markets."""
    return [f"X{number:04}/USDT" for number in range(1, count + 1)]


def write_exchanges(
    folder: Path, slots: Mapping[str, int], types: Sequence[str] = ("spot", "linear"), *, files: bool = False
) -> str:
    """Write the shipped file of the simulated exchange with other slots; return its path.

    Args:
        slots: Number by kind of job; the shipped number for a kind that is not given.
        types: Kinds of markets that ccxt loads.
        files: Whether it has files of whole days.
    """
    exchanges = yaml.safe_load(exchanges_file(Path("sim")).read_text())
    venue = exchanges["exchanges"]["SIM"]
    venue["slots"] |= slots
    venue["options"]["fetchMarkets"]["types"] = list(types)
    if files:
        venue["archive"] = venue["rest_url"]
    path = folder / "exchanges.yaml"
    path.write_text(yaml.safe_dump(exchanges))
    return str(path)
