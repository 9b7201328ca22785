"""udsource with a bug at the place in ``DEXORDER_TEST_BROKEN``.

read     the first read raises
ack      an ack raises
monitor  the background task that watches Kafka raises after the first ack
stuck    as ``read``, and then the consumer never closes
"""

from __future__ import annotations

import asyncio
import os
import runpy
import threading
from typing import Any

from dexorder_udsource.topic_reader import TopicReader


def bug(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a bug")


async def wait_for_ever(*_: Any) -> None:
    await asyncio.Event().wait()


def break_it(where: str) -> None:
    if where == "monitor":
        break_monitor()
        return
    name = {"read": "_take", "stuck": "_take", "ack": "ack"}[where]
    setattr(TopicReader, name, bug)
    if where == "stuck":
        setattr(TopicReader, "close", wait_for_ever)  # noqa: B010 - mypy takes no assignment to a method


def break_monitor() -> None:
    ack, note, acked = TopicReader.ack, TopicReader.note_topic_id, threading.Event()

    def note_ack(*given: Any) -> None:
        ack(*given)
        acked.set()

    def note_until_acked(*given: Any) -> None:
        if acked.is_set():
            bug()
        note(*given)

    setattr(TopicReader, "ack", note_ack)  # noqa: B010
    setattr(TopicReader, "note_topic_id", note_until_acked)  # noqa: B010


if __name__ == "__main__":
    break_it(os.environ["DEXORDER_TEST_BROKEN"])
    runpy.run_module("dexorder_udsource", run_name="__main__")
