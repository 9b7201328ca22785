"""What is said of a cluster that can't be reached."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from services.gateway.kafkapixy.client_errors import ConnectionErrors, reason

REFUSED = KafkaError(KafkaError._TRANSPORT, "b1: Connect failed: Connection refused (after 0ms in state CONNECT)")
REFUSED_TOO = KafkaError(
    KafkaError._TRANSPORT, "b2: refused (after 12ms in state CONNECT, 3 identical error(s) suppressed)"
)
LOGIN = KafkaError(KafkaError._AUTHENTICATION, "b2: SASL authentication error: no (after 31ms in state AUTH_REQ)")


def test_first_of_its_kind_stays_and_says_no_times() -> None:
    trouble = ConnectionErrors()
    for error in (REFUSED, REFUSED_TOO, REFUSED):
        trouble.note(error)
        assert trouble.text == "b1: Connect failed: Connection refused"


def test_what_tells_more_takes_its_place_and_keeps_it() -> None:
    trouble = ConnectionErrors()
    for error in (REFUSED_TOO, LOGIN, REFUSED):
        trouble.note(error)
    assert trouble.text == "b2: SASL authentication error: no"


def test_what_the_call_says_by_itself_is_no_news_and_an_answer_ends_it_all() -> None:
    trouble = ConnectionErrors()
    trouble.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert trouble.text == ""
    trouble.note(LOGIN)
    trouble.forget()
    assert trouble.text == ""
    trouble.note(REFUSED)
    assert "refused" in trouble.text


def test_reasons() -> None:
    assert reason(KafkaException(REFUSED_TOO)).startswith("b2: refused")
    assert reason(ValueError("why")) == "why"
    assert reason(KafkaException()) == ""
