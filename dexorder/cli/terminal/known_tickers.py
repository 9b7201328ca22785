"""Tickers for the completion of the shell: the lists of markets that commands have seen, one file an exchange.

A key press can't wait for a relay, so completion reads what ``markets`` and ``history`` have stored in the user's
cache. If a file can't be written or read, only this completion is lost. Imports only fast modules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dexorder_common.storage.whole_file import replace_text

MOST = 20_000
"""Tickers of an exchange that are stored."""
SHOWN = 200
"""Tickers that completion offers."""
_VENUE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def remember(venue: str, tickers: Iterable[str]) -> None:
    """Store the tickers of an exchange."""
    if not _VENUE.fullmatch(venue):
        return
    printable = sorted({each for each in tickers if each.isprintable() and " " not in each})[:MOST]
    path = _folder() / f"{venue}.txt"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "\n".join(printable))


def complete_ticker(incomplete: str) -> list[str]:
    """Return known tickers that start with this text."""
    found = list[str]()
    with suppress(OSError, UnicodeDecodeError):
        for path in sorted(_folder().glob("*.txt")):
            known = path.read_text(encoding="utf-8").split("\n")
            found += [each for each in known if each.startswith(incomplete)]
    return found[:SHOWN]


def complete_ticker_or_period(incomplete: str) -> list[str]:
    """Return the candidates for the next word of ``history``: tickers or periods."""
    from dexorder.cli.terminal.options import complete_period

    return complete_period(incomplete) + complete_ticker(incomplete)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dexorder", "tickers")
