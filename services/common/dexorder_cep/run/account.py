"""Resources that a trigger uses, on all its tickers of one engine together: work by minute, and memory. Pure.

Work is counted by the minute of the rows' time, not of the clock, so that rows that are fed again count as before. It
is not part of the engine's dump: after a restart a minute can cost twice the limit.
"""

from __future__ import annotations

from dexorder_cep.compile.arithmetic import TriggerFailed
from dexorder_cep.language.refusals import MAX_STATE_BYTES, MAX_WORK_PER_MINUTE, MAX_WORK_PER_ROW

_MINUTE_NS = 60_000_000_000
_KEPT_MINUTES = 240
_ROW_BYTES = 64
_VALUE_BYTES = 32


class Account:
    """Counters of one registration."""

    __slots__ = ("_minutes", "state_bytes")

    def __init__(self) -> None:
        self.state_bytes = 0
        self._minutes: dict[int, int] | None = None  # most triggers never count anything

    def spend(self, steps: int, time_ns: int, *, because: str = "", remedy: str = "take fewer rows or markets") -> None:
        """Count the steps that a row of a time costs.

        Args:
            because: Kind of the steps, for the error.
            remedy: Change that the user can make.

        Raises:
            TriggerFailed: The row, or its minute, costs too many.
        """
        detail = f" ({because})" if because else ""
        if steps > MAX_WORK_PER_ROW:
            raise TriggerFailed(f"a row costs more than {MAX_WORK_PER_ROW} steps{detail}; {remedy}")
        if self._minutes is None:
            self._minutes = {}
        minutes, minute = self._minutes, time_ns // _MINUTE_NS
        if minute not in minutes and len(minutes) >= _KEPT_MINUTES:
            del minutes[min(minutes)]
        spent = minutes[minute] = minutes.get(minute, 0) + steps
        if spent > MAX_WORK_PER_MINUTE:
            now = f" (now {because})" if because else ""
            raise TriggerFailed(f"the rows of a minute cost more than {MAX_WORK_PER_MINUTE} steps{now}; {remedy}")

    def release_all(self) -> None:
        """Count the trigger's memory from 0 again; its work keeps counting."""
        self.state_bytes = 0

    def hold(self, size: int) -> None:
        """Count bytes that the trigger starts to keep, or that it drops if ``size`` is negative.

        Raises:
            TriggerFailed: It keeps too many.
        """
        self.state_bytes += size
        if self.state_bytes > MAX_STATE_BYTES:
            raise TriggerFailed(
                f"the trigger keeps more than {MAX_STATE_BYTES >> 20} MiB of rows; "
                "take fewer columns, texts or markets, or add WITHIN"
            )


def value_size(value: object) -> int:
    """Return the memory of a value in bytes, roughly."""
    return _VALUE_BYTES + len(value) if type(value) is str else _VALUE_BYTES


def size_of(values: tuple[object, ...] | list[object]) -> int:
    """Return the memory of a row, or of any list of values, in bytes: roughly Python's."""
    return _ROW_BYTES + _VALUE_BYTES * len(values) + sum(len(each) for each in values if type(each) is str)
