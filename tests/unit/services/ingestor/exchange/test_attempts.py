from dexorder_common.model.history import Delay
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.answers import SLOW_NS, Attempts

NOW, WALL = 1_000 * SECOND_NS, 1_700_000_000 * SECOND_NS


def delay(attempts: Attempts, *, after_s: float = 0, ban_s: float = 0) -> Delay | None:
    now_ns = NOW + int(after_s * SECOND_NS)
    wall_ns = WALL + int(after_s * SECOND_NS)
    return attempts.delay("SIM", ban_ns=NOW + int(ban_s * SECOND_NS), now_ns=now_ns, wall_ns=wall_ns)


def test_an_attempt_is_a_delay_once_it_is_slow() -> None:
    attempts = Attempts()
    attempts.begin("BTC/USDT 1m")
    attempts.attempt(now_ns=NOW)
    assert delay(attempts, after_s=SLOW_NS / SECOND_NS - 1) is None
    assert delay(attempts, after_s=SLOW_NS / SECOND_NS) == Delay("SIM has not answered BTC/USDT 1m")
    attempts.end()
    assert delay(attempts, after_s=60) is None


def test_an_exchange_that_hangs_is_visible_within_15_seconds() -> None:
    heartbeat_seconds = IngestorSettings.model_fields["heartbeat_seconds"].default
    assert SLOW_NS / SECOND_NS + heartbeat_seconds <= 12, "and 3 s for the way to the client"


def test_a_failure_is_a_delay_until_the_query_ends() -> None:
    attempts = Attempts()
    attempts.begin("BTC/USDT 1m")
    for retries in (1, 2):
        attempts.attempt(now_ns=NOW)
        attempts.fail("RequestTimeout: 10 s", next_ns=NOW + 3 * SECOND_NS)
        expected = Delay("RequestTimeout: 10 s", retries, WALL + 3 * SECOND_NS)
        assert delay(attempts, after_s=1) == expected
    assert str(expected) == "RequestTimeout: 10 s (2 retries), next try 2023-11-14T22:13:23Z"
    attempts.attempt(now_ns=NOW + 3 * SECOND_NS)
    assert delay(attempts, after_s=4) == Delay("RequestTimeout: 10 s", 2)
    attempts.begin("BTC/USDT 1h")
    attempts.attempt(now_ns=NOW)
    assert delay(attempts, after_s=1) is None, "another query begins anew"


def test_a_ban_is_a_delay_whoever_caused_it_and_puts_off_the_next_attempt() -> None:
    attempts = Attempts()
    attempts.begin("BTC/USDT 1m")
    attempts.attempt(now_ns=NOW)
    end_ns = WALL + 60 * SECOND_NS
    assert delay(attempts, after_s=1, ban_s=60) == Delay("SIM has banned this address", 0, end_ns, end_ns)
    attempts.fail("429 Too Many", next_ns=NOW + SECOND_NS)
    assert delay(attempts, ban_s=60) == Delay("429 Too Many", 1, end_ns, end_ns)
