"""What the services that talk to Kafka share."""

from __future__ import annotations

import logging

LIBRDKAFKA_LOG = logging.getLogger("librdkafka")
"""Give it to every client of librdkafka as ``logger``.

Without its one line a connection and attempt while a broker is away: each service says once that Kafka is away.
"""
LIBRDKAFKA_LOG.addFilter(lambda record: not record.getMessage().startswith("FAIL "))
