"""Alerts at rest, which have no run and no code of their own, fire as triggers that are evaluated at every row.

The other engine knows no shapes, lets nothing sleep, and is never loaded from its state.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest

from dexorder_cep import Engine, compile_trigger
from dexorder_cep.run import engine_state
from dexorder_cep.run.engine_state import STATE_VERSION, EngineState
from dexorder_common.model.errors import InvalidRequest
from tests.unit.services.common.cep.test_thresholds import MINUTE, TICKERS, Feeder, every_row, same

TEXTS = (
    "close > {}",
    "close >= {}.0",
    "{} > close",
    "close <= {}.50",
    "quote_volume > {}",
    "close > :level",
    "close > 0{}",
)
PARAMETERS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"fire": "once"},
    {"warmup": "0"},
    {"resolve": "on"},
    {"cooldown": "120"},
    {"delay_ms": "60000"},
    {"initial": "fire"},
)
PRICES = (98.0, 99.0, 99.5, 100.0, 100.5, 101.0, 102.0, math.nan)


def step(rng: Random) -> tuple[str, Any, Any]:
    kind = rng.choices(
        ["row", "add", "edit", "remove", "pause", "resume", "kill", "settle"], [50, 22, 6, 6, 3, 3, 5, 2]
    )[0]
    if kind == "row":
        price = rng.choice(PRICES)
        return kind, rng.choice(TICKERS), (price, 1.0, rng.choice([None, price]), None)
    if kind == "add":
        given = dict(rng.choice(PARAMETERS))
        text = rng.choice(TEXTS).format(rng.randint(98, 102))
        if ":level" in text:
            given = {"level": str(rng.randint(98, 102)), **given}
        tickers = TICKERS if rng.random() < 0.2 else [rng.choice(TICKERS)]
        return kind, rng.randint(0, 50), (compile_trigger(text, given), tickers)
    return kind, rng.randint(0, 50), (rng.randint(98, 102), 100) if kind == "edit" else None


@pytest.mark.parametrize("seed", range(12))
def test_alerts_at_rest_fire_as_triggers_of_every_row(seed: int) -> None:
    rng = Random(seed)
    found, expected = Feeder(is_killed=True), Feeder(is_killed=False)
    fired = 0
    for _ in range(150):
        taken = step(rng)
        outcomes = found.take(*taken)
        with every_row():
            wanted = expected.take(*taken)
        assert same(outcomes) == same(wanted)
        fired += len(outcomes)
    assert repr(found.engine.dump()) == repr(expected.engine.dump())
    assert fired > 10


@pytest.mark.parametrize(("sign", "word"), [(">", "ABOVE"), ("<", "BELOW")])
@pytest.mark.parametrize("given", [{}, {"fire": "once"}, {"cooldown": "120"}])
def test_crossing_a_number_is_an_alert_that_becomes_true(sign: str, word: str, given: dict[str, str]) -> None:
    rng, engine = Random(7), Engine()
    fired: dict[str, list[int]] = {"a": [], "c": []}
    for minute in range(300):
        if minute % 60 == 5:
            for name, text in (("a", f"close {sign} 100"), ("c", f"close CROSSES {word} 100")):
                engine.remove(name)
                engine.add(name, minute, compile_trigger(text, given), minute * MINUTE, TICKERS[:1])
        close = float(rng.randint(98, 102))
        row = (minute * MINUTE, close, close, close, close, 1.0, None, None)
        for each in engine.feed_candles(TICKERS[0], 60, [row]):
            fired[each.trigger_id].append(each.time_ns)
    assert fired["a"] == fired["c"] and len(fired["a"]) > 4


def test_registrations_are_read_in_parts_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ['close > 1 -- "]},{[', "\\", "\N{SNOWMAN}\U0001f600", "", "]}"]
    written = [[f"t{n}", n, text, {text: text}, 10**18, [text], 1] for n, text in enumerate(texts)]
    for together in (1, 2, 1_000):
        monkeypatch.setattr(engine_state, "_TOGETHER", together)
        for several in (written, written[:1], []):
            state = EngineState.of(iter(several), {})
            assert json.loads(state.triggers) == {"version": STATE_VERSION, "triggers": several}
            for chunk in range(1, 60):
                monkeypatch.setattr(engine_state, "_CHUNK", chunk)
                assert list(state.registrations()) == several
    for damaged in (state.triggers[:-1], state.triggers + b"}", state.triggers.replace(b":3,", b":4,")):
        with pytest.raises(InvalidRequest, match="state of triggers"):
            list(EngineState(damaged, {}).registrations())
