"""Files that appear complete or not at all, and names of markets in other programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dexorder_common.model.instrument import Instrument
from dexorder_common.storage.whole_file import replaced


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when the block succeeds; make its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as stream:
        yield stream


def safe_name(text: str) -> str:
    """Return a text as part of a file's name: ``_`` replaces all characters but letters, digits, ``-`` and ``_``."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


def symbol_of(ticker: str) -> str:
    """Return the unified symbol of a ticker."""
    return Instrument.parse(ticker).symbol
