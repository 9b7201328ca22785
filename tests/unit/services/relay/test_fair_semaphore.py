"""Places for a few pieces of work at a time: clients that wait take turns, and no place is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

from dexorder_relay.fair_semaphore import FairSemaphore


async def test_a_client_with_a_thousand_pieces_delays_another_one_by_a_piece_of_each_client() -> None:
    semaphore, order = FairSemaphore(1), list[str]()
    ended = asyncio.Event()

    async def piece(client_id: str) -> None:
        async with semaphore.place(client_id):
            if not order:
                await ended.wait()
            order.append(client_id)

    tasks = [asyncio.create_task(piece("flood")) for _ in range(1_000)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(piece(each)) for each in ("a", "b", "a")]
    await asyncio.sleep(0)
    ended.set()
    await asyncio.gather(*tasks)
    assert order[:7] == ["flood", "flood", "a", "b", "flood", "a", "flood"] and len(order) == 1_003


async def test_a_client_alone_has_all_places() -> None:
    semaphore = FairSemaphore(2)
    async with semaphore.place("a"), semaphore.place("a"):
        third = asyncio.create_task(semaphore.place("a").__aenter__())
        assert not (await asyncio.wait({third}, timeout=0.01))[0]
    await third


async def test_no_place_is_lost_or_made_by_callers_that_go() -> None:
    """Pieces fail and are cancelled at any moment, also in the one in which they are given a place."""
    draw = random.Random(40)
    for _ in range(200):
        semaphore, inside, most = FairSemaphore(2), Counter[str](), 0

        async def piece(
            client_id: str, steps: int, semaphore: FairSemaphore = semaphore, inside: Counter[str] = inside
        ) -> None:
            nonlocal most
            async with semaphore.place(client_id):
                inside[client_id] += 1
                most = max(most, inside.total())
                try:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    if steps == 2:
                        raise OSError
                finally:
                    inside[client_id] -= 1

        tasks = [asyncio.create_task(piece(draw.choice("abc"), draw.randrange(4))) for _ in range(20)]
        for _ in range(30):
            await asyncio.sleep(0)
            draw.choice(tasks).cancel()
        for each in tasks:
            with suppress(asyncio.CancelledError, OSError):
                await each
        assert (semaphore._free, semaphore._waiting, inside.total()) == (2, {}, 0) and most <= 2
