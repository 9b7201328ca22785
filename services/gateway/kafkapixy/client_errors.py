"""Why a cluster can't be reached: librdkafka says so apart from the calls that fail."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

_TELLING = (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._SSL, KafkaError._AUTHENTICATION)
"""What a call only reports as no answer within its time; what comes later tells more."""
_WHEN = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


class ConnectionErrors:
    """What is wrong since the cluster answered last. Does not waver between brokers that say it in turn.

    Attributes:
        text: The first that tells most; empty for none.
    """

    def __init__(self) -> None:
        self._tells = -1
        self.text = ""

    def note(self, error: KafkaError) -> None:
        """For a client's ``error_cb``."""
        tells = _TELLING.index(error.code()) if error.code() in _TELLING else -1
        if tells > self._tells:
            self._tells = tells
            self.text = _WHEN.sub("", error.str())

    def forget(self) -> None:
        """The cluster has answered."""
        self._tells = -1
        self.text = ""


def reason(error: Exception) -> str:
    """What an exception of librdkafka, or another one, says."""
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)
