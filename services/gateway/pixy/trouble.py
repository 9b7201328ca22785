"""Why a cluster can't be reached: librdkafka says so apart from the calls that fail."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

_TELLING = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE}
"""What a call only reports as no answer within its time."""
_WHEN = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


class Trouble:
    """What went wrong last since the cluster answered.

    Attributes:
        text: It; empty for none, or for what the failing call tells by itself.
    """

    def __init__(self) -> None:
        self.text = ""

    def note(self, error: KafkaError) -> None:
        """For a client's ``error_cb``."""
        if error.code() in _TELLING:
            self.text = _WHEN.sub("", error.str())

    def forget(self) -> None:
        """The cluster has answered."""
        self.text = ""


def reason(error: Exception) -> str:
    """What an exception of librdkafka, or another one, says."""
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)
