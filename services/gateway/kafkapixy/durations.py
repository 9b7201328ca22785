"""Go's way to write durations, as Kafka-Pixy's file has them: ``500ms``, ``1m30s``, ``1.5h``. Pure."""

from __future__ import annotations

import re

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
}
_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_LARGEST_NS = 2**63 - 1


def parse_duration(text: str) -> int:
    """Nanoseconds of a duration; digits behind the nanosecond are cut off, term by term.

    Args:
        text: Numbers with units, one behind the other, a sign before the first; or ``0``.
    Raises:
        ValueError: It is no duration, or longer than 292 years.
    """
    sign, terms = (-1 if text[:1] == "-" else 1), text.removeprefix(text[:1] if text[:1] in "+-" else "")
    if terms == "0":
        return 0
    total_ns, at = 0, 0
    while at < len(terms):
        match = _TERM.match(terms, at)
        if match is None or not (match[1] or match[2]):
            raise ValueError(f"{text!r} is no duration like 500ms or 1m30s")
        whole, part, unit_ns = match[1] or "0", match[2] or "", _UNITS_NS[match[3]]
        total_ns += int(whole) * unit_ns + int(part or "0") * unit_ns // 10 ** len(part)
        at = match.end()
    if not terms:
        raise ValueError(f"{text!r} is no duration like 500ms or 1m30s")
    if total_ns > _LARGEST_NS:
        raise ValueError(f"{text!r} is longer than a duration can be")
    return sign * total_ns
