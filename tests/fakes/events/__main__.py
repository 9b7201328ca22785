"""``python -m tests.fakes.events FOLDER``: run all providers for a gateway that is started by hand.

Prints the gateway's settings and a JSON line for each call; ends with standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.fakes.events.providers import Providers


async def _serve(folder: Path) -> None:
    async with Providers() as providers:
        for name, value in providers.environment(folder).items():
            print(f"export {name}={value}", flush=True)
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        reported = 0
        while not ended.done():
            await asyncio.sleep(0.1)
            calls = [{"path": call.path, "bytes": len(call.body)} for server in providers.web for call in server.calls]
            calls += [{"mail": str(mail.message["Subject"])} for mail in providers.mail.mails]
            if len(calls) != reported:
                reported = len(calls)
                print(json.dumps({"calls": reported, "all": calls}), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
