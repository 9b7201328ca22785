"""Values of points, and checks of options, for the shipped functions. Pure."""

from __future__ import annotations

from dexorder_udf.points import Point


def number(point: Point, field: str) -> float:
    """Return a field as a number.

    Raises:
        ValueError: The point does not have it, or it is not a number.
    """
    value = point.fields.get(field)
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if value is None:
        raise ValueError(f'the point has no field "{field}"; its fields: {", ".join(sorted(point.fields)) or "none"}')
    raise ValueError(f'field "{field}": {value!r} is not a number')


def at_least(least: int, **options: int) -> None:
    """Check whole numbers given by the name of their option.

    Raises:
        ValueError: One is smaller than ``least``.
    """
    for name, value in options.items():
        if value < least:
            raise ValueError(f'option "{name}": {value} is not at least {least}')
