"""Rules of a table's snapshots: which ones have a tag, and which ones expire. Pure.

Notifications name the snapshot at which the relay has counted rows; a tag keeps it readable for some days. The others
are kept for an hour after they were replaced, because a reader may still use them. If there are too many, a snapshot
expires sooner if all its files are in the next snapshot as well, so that every file stays for the hour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from dexorder_common.model.times import SECOND_NS

if TYPE_CHECKING:
    from dexorder_spark.config import MaintenanceSettings

_HOUR_NS = 3_600 * SECOND_NS
_PLANNING_NS = 600 * SECOND_NS
"""Time for which a reader may still need the list of a replaced snapshot's files."""
_MIN_EXPIRED = 50
"""Snapshots that make an expiry due: it reads the table's metadata, which is not worth it for a few."""


@dataclass(frozen=True)
class SnapshotState:
    """A snapshot.

    Attributes:
        is_append: It only added files to the snapshot before it.
        is_pinned: It is current, or has a tag or branch of somebody else.
        tagged_until_ns: Time at which its tag ends; 0 without one.
    """

    id: int
    time_ns: int
    is_append: bool = True
    is_pinned: bool = False
    tagged_until_ns: int = 0


@dataclass(frozen=True)
class Tag:
    """Set the tags of some snapshots, given with their ends, and remove the tags of others."""

    until_ns: Mapping[int, int]
    removed: frozenset[int]


@dataclass(frozen=True)
class ExpireSnapshots:
    """Expire snapshots, and remove the files that no other one has."""

    snapshot_ids: tuple[int, ...]


def plan_expiry(
    snapshots: Sequence[SnapshotState],
    named: Mapping[int, int],
    settings: MaintenanceSettings,
    *,
    needed_ns: int | None,
    now_ns: int,
    eager: bool = False,
) -> list[Tag | ExpireSnapshots]:
    """Return the due steps: none, an expiry, or tags and an expiry.

    Args:
        snapshots: All of a table, oldest first.
        named: By snapshot, the time of the last notification that named it.
        needed_ns: Time from which on all are needed because the pipeline's state is found by their succession.
    """
    tagged = {each.id: each.tagged_until_ns for each in snapshots if each.tagged_until_ns}
    keep_ns = round(settings.snapshot_days * 24 * _HOUR_NS)
    until = tagged | {
        each.id: max(each.tagged_until_ns, named[each.id] + keep_ns) for each in snapshots if each.id in named
    }
    newest = sorted(until, key=until.__getitem__)[-settings.max_named_snapshots :]
    kept = {each: until[each] for each in newest if until[each] > now_ns}
    expired = _expired(snapshots, kept, settings, needed_ns, now_ns)
    if len(expired) < (1 if eager else _MIN_EXPIRED):
        return []
    tag = Tag({each: end for each, end in kept.items() if tagged.get(each) != end}, frozenset(tagged.keys() - kept))
    return [tag, ExpireSnapshots(tuple(expired))] if tag.until_ns or tag.removed else [ExpireSnapshots(tuple(expired))]


def _expired(
    snapshots: Sequence[SnapshotState],
    kept: Collection[int],
    settings: MaintenanceSettings,
    needed_ns: int | None,
    now_ns: int,
) -> list[int]:
    """Return the snapshots to expire, oldest first."""
    old, young, others = [], [], 0
    hour_ns = round(settings.snapshot_hours * _HOUR_NS)
    for each, following in pairwise(snapshots):
        if each.is_pinned or each.id in kept:
            continue
        others += 1
        age_ns = now_ns - following.time_ns
        if needed_ns is not None and each.time_ns >= needed_ns:
            continue
        if age_ns > hour_ns:
            old.append(each.id)
        elif following.is_append and age_ns > min(hour_ns, _PLANNING_NS):
            young.append(each.id)
    excess = others - len(old) - settings.max_snapshots
    return old + young[: max(0, excess)]
