"""Groups of points, as Kapacitor forms them. Pure.

A group id is "" without dimensions, else ``k=v,k2=v2`` in the order of the dimensions; grouped by name it begins with
the name and a newline, and is the name alone without dimensions. A tag that a point does not have counts as "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def group_id(name: str, dimensions: Sequence[str], tags: Mapping[str, str], by_name: bool = False) -> str:
    """Return the id of the group to which a point belongs."""
    text = ",".join([f"{each}={tags.get(each, '')}" for each in dimensions])
    if by_name:
        return f"{name}\n{text}" if dimensions else name
    return text


def group_tags(dimensions: Sequence[str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that all points of the group share: those of its dimensions."""
    return {each: tags.get(each, "") for each in dimensions}
