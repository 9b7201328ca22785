"""Changes of settings that a CONFIG_UPDATE asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """New settings; None leaves one as it is."""

    max_concurrent: int | None
    timeout_seconds: int | None


def read_change(config: pb.IngestorConfig, *, slots: int, topics: Sequence[str]) -> SettingsChange:
    """Return the change in a CONFIG_UPDATE.

    Args:
        slots: Slots that the exchanges file gives this ingestor.
        topics: Topics that it writes, the first of which has candles.
    Raises:
        InvalidRequest: No field is set, or one is out of range; nothing may be changed then.
    """
    fields = ("max_concurrent", "timeout_seconds", "kafka_topic")
    if not any(config.HasField(field) for field in fields):  # type: ignore[arg-type]
        raise InvalidRequest(f"config has none of {', '.join(fields)}")
    if config.HasField("max_concurrent") and not 1 <= config.max_concurrent <= slots:
        raise InvalidRequest(f"max_concurrent {config.max_concurrent} is not between 1 and {slots}, the slots it has")
    if config.HasField("timeout_seconds") and not config.timeout_seconds:
        raise InvalidRequest("timeout_seconds 0 is not above 0")
    if config.HasField("kafka_topic") and config.kafka_topic != topics[0]:
        raise InvalidRequest(f"kafka_topic {config.kafka_topic!r} is read by nobody; candles go to {topics[0]!r}")
    return SettingsChange(
        config.max_concurrent if config.HasField("max_concurrent") else None,
        config.timeout_seconds if config.HasField("timeout_seconds") else None,
    )
