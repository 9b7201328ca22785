"""udsource with a bug at the place in ``DEXORDER_TEST_BROKEN``.

read    the thread that reads Kafka raises at the first read
ack     an ack raises
tick    the background task of the idle consumer raises after the first ack
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
        ack, rest, acked = TopicReader.ack, TopicReader._serve_idle, threading.Event()

        def note_ack(*given: Any) -> None:
            ack(*given)
            acked.set()

        def rest_until_acked(reader: TopicReader) -> None:
            if acked.is_set():
                bug()
            rest(reader)

        setattr(TopicReader, "ack", note_ack)  # noqa: B010
        setattr(TopicReader, "_serve_idle", rest_until_acked)  # noqa: B010


if __name__ == "__main__":
    break_it(os.environ["DEXORDER_TEST_BROKEN"])
    runpy.run_module("services.udsource", run_name="__main__")
