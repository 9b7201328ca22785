"""What the services that talk to Kafka share."""

from __future__ import annotations

import logging
from functools import lru_cache
from operator import methodcaller
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)

LIBRDKAFKA_LOG = logging.getLogger("librdkafka")
"""Give it to every client of librdkafka as ``logger``.

Without its one line a connection and attempt while a broker is away: each service says once that Kafka is away.
"""
LIBRDKAFKA_LOG.addFilter(lambda record: not record.getMessage().startswith("FAIL "))

RecordHeaders = list[tuple[str, bytes | None]]


class WithHeaders(Protocol):
    """What `headers_of` uses of a confluent-kafka message."""

    def topic(self) -> str | None: ...  # noqa: D102
    def partition(self) -> int | None: ...  # noqa: D102
    def offset(self) -> int | None: ...  # noqa: D102
    def headers(self) -> Any: ...  # noqa: D102 - call `headers_of`
    def set_headers(self, headers: Any) -> None: ...  # noqa: D102


_ask = methodcaller("headers")
"""``record.headers()``, called from C.

For a name that is not UTF-8 the client returns a list with holes and leaves the error to be found. A call in Python
stops looking for one when it has become fast by repetition; the error then comes up anywhere behind it.
"""


def headers_of(record: WithHeaders) -> RecordHeaders:
    """A record's headers, in order; none, and a warning, if the name of one is not UTF-8, which Kafka allows.

    Ask for them in no other way: a list with holes ends the process that looks into it.
    """
    try:
        found: RecordHeaders | None = _ask(record)
    except (SystemError, UnicodeDecodeError):
        record.set_headers([])  # the record may be asked again
        _warn(record.topic(), record.partition(), record.offset())
        return []
    return found or []


@lru_cache(maxsize=1_024)  # a record is read again after a nack, and by each replay
def _warn(topic: str | None, partition: int | None, offset: int | None) -> None:
    place = {"topic": topic, "partition": partition, "offset": offset}
    log.warning("a record goes out without headers: the name of one is not UTF-8", **place)
