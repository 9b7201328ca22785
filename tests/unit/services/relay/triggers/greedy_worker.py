"""Process that checks triggers' texts, with a compiler that never ends on some and takes all memory on others."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dexorder_cep import CompiledTrigger, compile_trigger
from dexorder_relay.triggers.text_worker import main


def compile_text(sql: str, parameters: Mapping[str, str]) -> CompiledTrigger:
    if sql == "loop":
        while True:
            pass
    if sql.strip() == "memory":
        held = [bytes(1 << 20) for _ in range(256)]  # addresses, of which nothing is used; no time
        return compile_trigger(f"SELECT * FROM ohlc WHERE close > {len(held)}", parameters)
    if sql == "fault":
        raise KeyError(sql)
    return compile_trigger(sql, parameters)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer, compile_text)
