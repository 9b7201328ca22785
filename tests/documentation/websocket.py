"""A session over WebSocket with the messages of a page, for user ``alice``, whose token is in ``TOKEN``.

``python -m tests.documentation.websocket FILE ADDRESS`` sends the client's messages of the file, and compares the kinds
of the answers with the gateway's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp

ANSWER_SECONDS = 30
SEND = ("dexorder", "events", "send", "alice", "ORDER_FILLED", "{}", "--channel", "ACTIVE_SESSION")


def messages(text: str) -> dict[str, Any]:
    """Return the messages by their kind; of two values the first one."""
    text = re.sub(r'("[^"]*") or "[^"]*"| or null', r"\1", text).replace("{...}", "{}")
    found = [json.loads(each) for each in re.findall(r"\{\"\w+\": \{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}\}", text)]
    return {kind: message for message in found for kind in message}


async def main(text: str, address: str) -> None:
    """Hold the session; AssertionError if an answer is of another kind."""
    known = messages(text)
    print(*known)
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{address}/v1/events") as socket:

        async def answer() -> tuple[str, Any]:
            ((kind, value),) = json.loads(await socket.receive_str(timeout=ANSWER_SECONDS)).items()
            assert kind in known, f"{kind!r} is not on the page"
            return kind, value

        async def until(kind: str) -> Any:
            while (heard := await answer())[0] != kind:
                assert heard[0] in ("event", "opened"), heard
            return heard[1]

        login = known["authorize"]["authorize"]
        assert set(login) == {"token", "cursor", "clientName"}
        await socket.send_json({"authorize": {**login, "token": os.environ["TOKEN"], "cursor": None}})
        kind, opened = await answer()
        assert kind in ("opened", "reset")
        await asyncio.create_subprocess_exec(*SEND)
        event = await until("event")
        ack = known["ack"]["ack"]
        cursor = {"epoch": opened["cursor"]["epoch"], "sequence": event["sequence"]}
        assert set(ack["cursor"]) == set(login["cursor"]) == set(cursor)
        await socket.send_json({"ack": {**ack, "cursor": cursor}})
        await socket.send_json({"list": {**known["list"]["list"], "container": "local"}})
        await until("records")
        await socket.send_json({"authorize": {**login, "token": os.environ["TOKEN"], "cursor": cursor}})
        await until("opened")
        await socket.send_json({"authorize": {**login, "cursor": None}})
        error = await until("error")
        assert set(error) == set(known["error"]["error"]) and error["code"] == "UNAUTHENTICATED"
        assert (await socket.receive(timeout=ANSWER_SECONDS)).type is aiohttp.WSMsgType.CLOSE


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_text(), sys.argv[2]))
