"""Alerts in micro-batches: loaded ones fire as those that were registered live, and an id has one trigger."""

from __future__ import annotations

from random import Random

import pytest

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.cep.evaluator import Evaluator, RegistrationChange, RegistrationChanges
from dexorder_spark.cep.inputs import Register
from dexorder_spark.cep.journal import Snapshot

TICKERS = ["BTC/USDT.SIM", "ETH/USDT.SIM"]
MINUTE_NS = 60 * SECOND_NS
TEXTS = ("close > {}", "close <= {}.50", "{} > close", "close CROSSES ABOVE {}", "close > 0{}")
PARAMETERS: tuple[dict[str, str], ...] = ({}, {"fire": "once"}, {"expires": "900"}, {"cooldown": "120"})


def alert(number: int, name: str, text: str, rng: Random, at_ns: int) -> RegistrationChange:
    given = dict(rng.choice(PARAMETERS))
    return RegistrationChange(number, Register(number, name, text, given, [rng.choice(TICKERS)], at_ns))


def changes(sequence: int, several: list[RegistrationChange]) -> RegistrationChanges:
    return RegistrationChanges(several, Cursor("epoch", sequence))


def reloaded(evaluator: Evaluator) -> Evaluator:
    return Evaluator(Snapshot.decode(evaluator.snapshot().encode()))


@pytest.mark.parametrize("seed", range(4))
def test_loaded_alerts_fire_as_those_that_were_registered_live(seed: int) -> None:
    rng = Random(seed)
    live, restarted, number, fired = Evaluator(), Evaluator(), 0, 0
    for n in range(30):
        several = list[RegistrationChange]()
        for _ in range(rng.randint(0, 6)):
            number += 1
            text = rng.choice(TEXTS).format(rng.randint(95, 105))
            several.append(alert(number, f"t{number}", text, rng, n * MINUTE_NS + rng.randint(0, 3)))
        for each in rng.sample(range(1, number + 1), min(number, rng.randint(0, 2))):
            several.append(RegistrationChange(each))
        closes = [float(rng.randint(94, 106)) for _ in TICKERS]
        batches = []
        for evaluator in (live, restarted):
            evaluator.apply(changes(n + 1, several))
            for ticker, close in zip(TICKERS, closes, strict=True):
                row = (n * MINUTE_NS, close, close, close, close, 1.0, None, None)
                span = TimeRange(n * MINUTE_NS, (n + 1) * MINUTE_NS)
                evaluator.feed(Series.decode(ticker, 60), [row], span, (n + 1) * MINUTE_NS + SECOND_NS)
            evaluator.advance((n + 1) * MINUTE_NS)
            batches.append(evaluator.finish({}))
        assert batches[0].events == batches[1].events
        fired += len(batches[0].events)
        if rng.random() < 0.6:
            restarted = reloaded(restarted)
            assert restarted._watchers == live._watchers
    assert restarted.snapshot().state == live.snapshot().state
    assert fired > 20


@pytest.mark.parametrize("moment", ["in the same batch", "later", "after a restart"])
def test_an_id_has_one_trigger_if_its_deletion_is_lost(moment: str) -> None:
    rng, evaluator = Random(1), Evaluator()
    evaluator.apply(changes(1, [alert(1, "t", "close > 1", rng, 0)]))
    if moment != "in the same batch":
        evaluator.finish({})
    if moment == "after a restart":
        evaluator = reloaded(evaluator)
    evaluator.apply(changes(2, [alert(2, "t", "close > 2", rng, 0)]))
    evaluator.finish({})
    assert list(evaluator._watchers) == [2]
    assert list(reloaded(evaluator)._watchers) == [2]
