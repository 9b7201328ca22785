"""State of a UDF's stage as bytes: its input, the size of its output, and its own snapshot. Pure.

8 bytes      length of the header, big endian
header       JSON: version, generation, number of outputs and of sent outputs, groups, open windows
the rest the UDF's snapshot, unchanged
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.udf.feed import FeedState, GroupState
from dexorder_udf.points import Point
from dexorder_udf.windows import OpenWindow

_VERSION = 1
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class StageState:
    """State after a batch. The number of sent rows is in the snapshot itself (``CommitState.udf_sent``).

    Attributes:
        generation: Increases each time the UDF starts from scratch.
        outputs: Number of rows that were added to the table, over all generations; the sequence of the next one. sent:
            Number of rows that topic and user had received when the state was written.
        snapshot: The UDF's state; empty before its first one.
    """

    generation: int = 0
    outputs: int = 0
    sent: int = 0
    feed: FeedState = field(default_factory=FeedState)
    snapshot: bytes = b""

    def anew(self, generation: int) -> StageState:
        """Return the state of a start that forgets everything but the number of the rows."""
        return replace(self, generation=generation, feed=FeedState(), snapshot=b"")


def encode_state(state: StageState, max_bytes: int) -> bytes:
    """Return the bytes of a state; InvalidRequest if they are more than ``max_bytes``."""
    header = {
        "version": _VERSION,
        "generation": state.generation,
        "outputs": state.outputs,
        "sent": state.sent,
        "groups": {name: [each.newest_ns, each.recent] for name, each in state.feed.groups.items()},
        "windows": {
            name: [each.end_ns, [_dump(point) for point in each.points]] for name, each in state.feed.windows.items()
        },
    }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    size = _LENGTH_BYTES + len(encoded) + len(state.snapshot)
    if size > max_bytes:
        raise InvalidRequest(
            f"its state has {size} bytes ({len(state.snapshot)} of its snapshot), at most {max_bytes} are allowed"
        )
    return len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded + state.snapshot


def decode_state(data: bytes) -> StageState:
    """Return a state; InvalidRequest if the bytes are not one, or one of a later version."""
    try:
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
        header = json.loads(data[_LENGTH_BYTES:end])
        if header["version"] != _VERSION:
            raise InvalidRequest(f"state of a UDF has version {header['version']}, and this driver reads {_VERSION}")
        feed = FeedState(
            {name: GroupState(newest_ns, recent) for name, (newest_ns, recent) in header["groups"].items()},
            {
                name: OpenWindow(end_ns, list(map(_load, points)))
                for name, (end_ns, points) in header["windows"].items()
            },
        )
        return StageState(header["generation"], header["outputs"], header["sent"], feed, data[end:])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{len(data)} bytes are not the state of a UDF: {error}") from error


def _dump(point: Point) -> list[Any]:
    return [point.time_ns, point.tags, point.fields, point.name, point.dimensions, point.database]


def _load(given: list[Any]) -> Point:
    time_ns, tags, fields, name, dimensions, database = given
    return Point(time_ns, tags, fields, name, tuple(dimensions), database=database)
