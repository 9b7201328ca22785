"""What becomes of a code block: it is run, read by what reads such a text, or the reason why neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """Shell commands or a Python program, run in the page's folder against a suite."""

    begins: str
    """First characters of the block, by which it is recognized."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Texts that are replaced before it is run, as this machine has no such host, or a command has no end."""
    by: str = ""
    """Shell command that gets the block as file ``$BLOCK``, for other languages."""
    until: str = ""
    """Output after which a program without an end gets Ctrl-C."""
    prints: str = ""
    """Pattern that the output has, where the page tells what happens and does not show it."""
    then: str = ""
    """Python program after a Python program, which asserts what the page tells of it."""
    apart: str = ""
    """Pattern of shown lines that are not compared, as in a chart."""
    unlike: str = ""
    """Pattern of what may differ between the page and the output, beside ids, times and numbers of snapshots."""


@dataclass(frozen=True)
class Saved:
    """File that the blocks of its page use; written before they run."""

    begins: str
    file: str


@dataclass(frozen=True)
class Read:
    """Text that is read by what reads such a text: ``reader`` gets it and a folder, and raises if it is invalid."""

    begins: str
    reader: Callable[[str, Path], object]


@dataclass(frozen=True)
class NotRun:
    """Block that is not run, and why."""

    begins: str
    reason: str


Entry = Run | Saved | Read | NotRun


@dataclass(frozen=True)
class Page:
    """Entries of the blocks of a page, in its order."""

    blocks: tuple[Entry, ...]
    prepared_by: str = ""
    """Shell commands that make what the text takes for granted."""
    names: str = ""
    """Python program whose names the page's programs take for granted."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Texts that are replaced in all blocks that run."""
    tools: tuple[str, ...] = ()
    """Commands that the page needs beside ours; where one is not installed, the page is skipped."""

    @property
    def runs(self) -> bool:
        """Return whether a block of it is run."""
        return any(isinstance(each, Run) for each in self.blocks)
