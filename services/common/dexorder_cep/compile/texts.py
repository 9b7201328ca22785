"""Functions of texts, and the meter of their cost. Pure except the meter.

The number of nodes of a trigger does not limit the size of its texts: each of eight nested queries can multiply it by a
hundred. So a text has a largest size, and its bytes are steps of the trigger's work.
"""

from __future__ import annotations

from dexorder_cep.compile.arithmetic import TriggerFailed
from dexorder_cep.language.refusals import MAX_VALUE_BYTES, MAX_WORK_PER_ROW

_BYTES_IN_A_STEP = 16
"""Bytes of a text that cost as much as the evaluation of a node."""


class Meter:
    """Steps of texts since the last ``take``; an engine takes them after each evaluation of a trigger."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0

    @property
    def left(self) -> int:
        """Steps that the row may still cost."""
        return MAX_WORK_PER_ROW - self.steps

    def add(self, steps: int) -> None:
        """Count steps; TriggerFailed if the row costs too many."""
        self.steps += steps
        if self.steps > MAX_WORK_PER_ROW:
            raise TriggerFailed(
                f"the texts of a row cost more than {MAX_WORK_PER_ROW} steps; use fewer or shorter texts"
            )

    def take(self) -> int:
        """Return the steps and start again."""
        steps, self.steps = self.steps, 0
        return steps


METER = Meter()


def join_texts(*parts: str) -> str:
    """Return CONCAT; TriggerFailed if the text is too large, before it is made."""
    if sum(map(len, parts)) > MAX_VALUE_BYTES:
        raise _too_large()
    return bounded("".join(parts))


def bounded(text: str) -> str:
    """Return a text; TriggerFailed if it is too large."""
    size = len(text)
    if size > MAX_VALUE_BYTES // 4 and len(text.encode(errors="surrogatepass")) > MAX_VALUE_BYTES:
        raise _too_large()
    METER.add(1 + size // _BYTES_IN_A_STEP)
    return text


def _too_large() -> TriggerFailed:
    return TriggerFailed(f"a text has more than {MAX_VALUE_BYTES} bytes; make it shorter with SUBSTRING")


def like(text: str, pattern: str, escape: str = "\\") -> bool:
    """Return whether a text fits a LIKE pattern, in steps proportional to text times pattern at most."""
    parts: list[str | None] = []  # None is %, "" is _, any other string is itself
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == escape and index + 1 < len(pattern):
            index += 1
            parts.append(pattern[index])
        elif character == "%":
            if not parts or parts[-1] is not None:
                parts.append(None)
        else:
            parts.append("" if character == "_" else character)
        index += 1
    at = position = 0
    star, resume = -1, 0
    steps, left = len(pattern), METER.left
    while position < len(text):
        steps += 1
        if steps > left:
            METER.add(steps)  # it raises
        if at < len(parts) and parts[at] is None:
            star, resume, at = at, position, at + 1
        elif at < len(parts) and parts[at] in ("", text[position]):
            at, position = at + 1, position + 1
        elif star >= 0:
            resume += 1
            at, position = star + 1, resume
        else:
            break
    METER.add(steps)
    return position == len(text) and all(part is None for part in parts[at:])
