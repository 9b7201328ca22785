"""Admin client of a Kafka cluster that is replaced after an unanswered query."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import AdminClient


class RenewedAdmin:
    """AdminClient of one cluster, for one event loop.

    A client of librdkafka 2.16 was seen to report "Broker transport failure" for a minute after a frozen broker had
    come back, when a consumer beside it had been assigned its partitions again. A new client knows only the configured
    addresses and finds the broker.

    Attributes:
        client: The current one. A query that has begun keeps its own.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self.client = AdminClient(self._options)

    def renew(self) -> None:
        """Replace the client. The old one is closed in a thread, because that may wait for its connections."""
        closing = [self.client]
        self.client = AdminClient(self._options)
        threading.Thread(target=closing.clear, name="kafka-admin-close", daemon=True).start()
