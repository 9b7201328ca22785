"""The page and a WebSocket that speaks as the gateway's does, with a log of events in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from aiohttp import WSMsgType, web

from tests.fixtures_kafka import free_ports

PAGE = Path("services/gateway/events/page")
CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
KEY = "k" * 32


def token(user: str, seconds: float = 600) -> str:
    return jwt.encode({"sub": user, "exp": int(time.time() + seconds), "aud": "dexorder"}, KEY, "HS256")


@dataclass
class Site:
    epoch: str = "e1"
    events: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    acks: list[tuple[int, str]] = field(default_factory=list)
    cursors: list[Any] = field(default_factory=list)
    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    port: int = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/events", self.socket)
        app.router.add_get("/{name:.*}", self.file)
        self.port = self.port or free_ports(1)[0]
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def kill(self) -> None:
        for socket in self.sockets:
            socket._req.transport.abort()
        await self.runner.cleanup()

    async def file(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE / (request.match_info["name"] or "index.html"), headers={"Content-Security-Policy": CSP})

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        self.sockets.add(ws)
        opened = False
        async for message in ws:
            assert message.type is WSMsgType.TEXT
            said = json.loads(message.data)
            if "authorize" in said:
                try:
                    who = jwt.decode(said["authorize"]["token"], KEY, ["HS256"], audience="dexorder")
                except jwt.InvalidTokenError as error:
                    await ws.send_json({"error": {"code": "UNAUTHENTICATED", "message": f"token: {error}".lower()}})
                    await ws.close(code=4401)
                    break
                cursor = said["authorize"]["cursor"]
                if not opened:
                    self.cursors.append(cursor)
                same = cursor is None or cursor["epoch"] == self.epoch
                after = int(cursor["sequence"]) if cursor and same else 0
                opened_message = {"cursor": {"epoch": self.epoch, "sequence": str(after)}, "expiresAt": str(who["exp"] * 1000)}
                await ws.send_json({"opened" if same else "reset": opened_message})
                if not opened:
                    for event in self.events[after:]:
                        await ws.send_json({"event": event})
                opened = True
            elif "ack" in said:
                self.acks.append((int(said["ack"]["place"]["sequence"]), said["ack"]["kind"]))
            elif "list" in said:
                size, start = said["list"]["pageSize"], int(said["list"]["pageToken"] or 0)
                page = self.records[start : start + size]
                more = {"nextPageToken": str(start + size)} if start + size < len(self.records) else {}
                await ws.send_json({"records": {"records": page, **more}})
        self.sockets.discard(ws)
        return ws

    async def publish(self, title: str, body: str = "", *, container: str = "alice-bot", priority: str = "NORMAL",
                      kind: str = "ORDER_FILLED", payload: dict[str, Any] | None = None, ago: float = 0.0) -> None:
        number = len(self.events) + 1
        event = {"sequence": str(number), "container": container, "title": title, "body": body, "event": {
            "userId": "alice", "eventId": f"ev-{number:04}", "timestamp": str(int((time.time() - ago) * 1000)),
            "eventType": kind, "payload": base64.b64encode(json.dumps(payload or {}).encode()).decode(),
            "delivery": {} if priority == "INFORMATIONAL" else {"priority": priority}}}
        self.events.append(event)
        for ws in self.sockets:
            await ws.send_json({"event": event})


if __name__ == "__main__":
    async def main() -> None:
        site = Site()
        await site.start()
        print(f"http://127.0.0.1:{site.port}/", token("alice"))
        await asyncio.Event().wait()
    asyncio.run(main())
