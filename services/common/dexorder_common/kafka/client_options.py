"""Options and helpers for every client of confluent-kafka."""

from __future__ import annotations

import logging
import os
import socket
from functools import lru_cache
from operator import methodcaller
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)

LIBRDKAFKA_LOG = logging.getLogger("librdkafka")
"""Logger for every client of librdkafka.

It drops the line that librdkafka writes for each failed connection attempt; each service reports once that Kafka is
unavailable.
"""
LIBRDKAFKA_LOG.addFilter(lambda record: not record.getMessage().startswith("FAIL "))

RecordHeaders = list[tuple[str, bytes | None]]


def client_id(service: str) -> str:
    """Return the name of this process at the brokers."""
    return f"dexorder-{service}_{socket.gethostname()}_{os.getpid()}"


class WithHeaders(Protocol):
    """Methods of a confluent-kafka message that `headers_of` uses."""

    def topic(self) -> str | None: ...  # noqa: D102
    def partition(self) -> int | None: ...  # noqa: D102
    def offset(self) -> int | None: ...  # noqa: D102
    def headers(self) -> Any: ...  # noqa: D102 - call `headers_of`
    def set_headers(self, headers: Any) -> None: ...  # noqa: D102


_headers = methodcaller("headers")
"""Call ``record.headers()`` from C.

For a name that is not UTF-8 the client returns a list with NULL entries and a pending error. The specializing
interpreter does not check for pending errors after a hot call, so the error would surface at any later place.
"""


def headers_of(record: WithHeaders) -> RecordHeaders:
    """Return a record's headers in order; none, with a warning, if a name is not UTF-8, which Kafka allows.

    Never read headers in another way: access to a list with NULL entries crashes the process.
    """
    try:
        found: RecordHeaders | None = _headers(record)
    except (SystemError, UnicodeDecodeError):
        record.set_headers([])  # its headers may be read again
        _warn(record.topic(), record.partition(), record.offset())
        return []
    return found or []


@lru_cache(maxsize=1_024)  # the record is read again after a nack and by each replay
def _warn(topic: str | None, partition: int | None, offset: int | None) -> None:
    place = {"topic": topic, "partition": partition, "offset": offset}
    log.warning("record delivered without headers: the name of one is not UTF-8", **place)
