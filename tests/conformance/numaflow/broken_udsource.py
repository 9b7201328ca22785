"""udsource with a bug where ``DEXORDER_TEST_BROKEN`` says, for the tests of what becomes of it.

read    the thread that reads Kafka raises at the first read
ack     taking an ack raises
tick    the care of the consumer in the background raises once somebody has read
stuck   as ``read``, and then the consumer never closes
"""

from __future__ import annotations

import os
import runpy
import threading
from typing import Any

from services.udsource.topic_reader import TopicReader


def bug(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a bug")


def wait_for_ever(*_: Any) -> None:
    threading.Event().wait()


def break_it(where: str) -> None:
    names = {"read": ["_fetch"], "ack": ["ack"], "stuck": ["_fetch"], "tick": []}[where]
    for name in names:
        setattr(TopicReader, name, bug)
    if where == "stuck":
        setattr(TopicReader, "_stop", wait_for_ever)  # noqa: B010 - mypy takes no assignment to a method
    if where == "tick":
        rest = TopicReader._rest
        setattr(TopicReader, "_rest", lambda self: rest(self) if self._consumer is None else bug())  # noqa: B010


if __name__ == "__main__":
    break_it(os.environ["DEXORDER_TEST_BROKEN"])
    runpy.run_module("services.udsource", run_name="__main__")
