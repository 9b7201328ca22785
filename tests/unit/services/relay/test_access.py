"""Access rights and quotas: tables and properties, no sockets."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dexorder_common.model.errors import Exhausted, InvalidRequest, NotFound
from dexorder_common.model.history import HistoryRequest, Progress, RequestRecord, RequestState
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.identity import Caller, Quota, Role
from dexorder_relay import access
from dexorder_relay.access import CallerQuotas, Limits

DESK, OTHER = Caller("desk", Role.CLIENT), Caller("other", Role.CLIENT)
BOSS = Caller("boss", Role.ADMIN)
NO_LIMITS = Limits(10**9, 10**9, 10**18, 10**9, 10**9, 10**9, 10**18, 10**18, 10**18, 10**9, 10**9)


def request(client_id: str, minutes: int = 10, *, request_id: str = "r", limit: int | None = None) -> HistoryRequest:
    return HistoryRequest(request_id, "BTC/USDT.SIM", 0, minutes * 60 * SECOND_NS, 60, limit, client_id)


def quotas(refused: list[tuple[str, str]] | None = None, **limits: int) -> CallerQuotas:
    values = {name: getattr(NO_LIMITS, name) for name in NO_LIMITS.__slots__} | limits
    reported = refused if refused is not None else []
    return CallerQuotas(Limits(**values), lambda client_id, quota: reported.append((client_id, quota)))


@pytest.mark.parametrize(
    ("caller", "named", "signed"),
    [
        (None, "", ""),
        (None, "anyone", "anyone"),
        (DESK, "", "desk"),
        (DESK, "desk", "desk"),
        (DESK, "other", InvalidRequest),
        (DESK, "Desk", InvalidRequest),
        (BOSS, "", "boss"),
        (BOSS, "desk", InvalidRequest),
    ],
)
def test_a_submission_is_signed_with_the_callers_name(
    caller: Caller | None, named: str, signed: str | type[Exception]
) -> None:
    if isinstance(signed, type):
        with pytest.raises(signed, match=f"client_id {named!r} is not the caller's"):
            access.signed(caller, request(named))
    else:
        assert access.signed(caller, request(named)) == request(signed)


@pytest.mark.parametrize(
    ("caller", "owner", "there"),
    [
        (None, "", True),
        (None, "desk", True),
        (DESK, "desk", True),
        (DESK, "other", False),
        (DESK, "", False),
        (BOSS, "desk", True),
        (BOSS, "", True),
    ],
)
def test_a_request_is_there_for_its_client_and_for_admins(caller: Caller | None, owner: str, there: bool) -> None:
    record = RequestRecord(request(owner), 0, Progress(RequestState.QUEUED, 0, 0, 0, 0, 0, 0, 0, 0))
    assert access.sees(caller, record.request) is there
    if there:
        assert access.seen(caller, record) is record
    else:
        with pytest.raises(NotFound) as refusal:
            access.seen(caller, record)
        assert str(refusal.value) == str(access.unknown_request("r"))


@pytest.mark.parametrize(
    ("caller", "asked", "about"),
    [
        (None, "", ""),
        (None, "desk", "desk"),
        (DESK, "", "desk"),
        (DESK, "desk", "desk"),
        (DESK, "other", NotFound),
        (DESK, "no-one", NotFound),
        (BOSS, "", ""),
        (BOSS, "desk", "desk"),
    ],
)
def test_lists_and_topics_are_about_the_caller(caller: Caller | None, asked: str, about: str | type[Exception]) -> None:
    if isinstance(about, type):
        with pytest.raises(about, match=f"{asked!r} is not known"):
            access.listed(caller, asked)
    else:
        assert access.listed(caller, asked) == about


# ---- quotas --------------------------------------------------------------------------------------------------------


def test_without_a_caller_nothing_is_limited() -> None:
    q = quotas(unfinished_requests=0, submissions_per_minute=1, unfinished_periods=0, open_streams=0)
    for number in range(5):
        q.submit(None, now_ns=0)
        q.admit(None, request("x", request_id=str(number)))
        q.enter(request("x", request_id=str(number)))
        with q.stream(None):
            pass


def test_unfinished_requests_and_periods_are_freed_by_an_end() -> None:
    refused: list[tuple[str, str]] = []
    q = quotas(refused, unfinished_requests=2, unfinished_periods=25)
    first, second = request("desk", 10, request_id="1"), request("desk", 10, request_id="2")
    for each in (first, second):
        q.admit(DESK, each)
        q.enter(each)
    with pytest.raises(Exhausted, match=r"unfinished_requests would be 3, 2 are allowed for client_id 'desk'; submit"):
        q.admit(DESK, request("desk", 1, request_id="3"))
    q.admit(OTHER, request("other", 1, request_id="3"))  # another's are another's
    q.leave(first)
    with pytest.raises(Exhausted, match=r"unfinished_periods would be 26, 25 are allowed .* has ended"):
        q.admit(DESK, request("desk", 16, request_id="3"))
    with pytest.raises(InvalidRequest, match=r"26 periods, 25 are allowed .* request a shorter one"):
        q.admit(DESK, request("desk", 26, request_id="3"))  # waiting would not help
    q.admit(DESK, request("desk", 10_000, request_id="3", limit=15))  # with a limit, that is all it wants
    assert refused == [("desk", "unfinished_requests"), ("desk", "unfinished_periods")]


def test_an_entry_of_the_callers_file_has_limits_of_its_own() -> None:
    q = quotas(unfinished_requests=1, open_streams=0)
    roomy = Caller("desk", Role.CLIENT, Quota(unfinished_requests=2))
    q.enter(request("desk", request_id="1"))
    q.admit(roomy, request("desk", request_id="2"))
    with pytest.raises(Exhausted):
        q.admit(DESK, request("desk", request_id="2"))
    with pytest.raises(Exhausted, match="open_streams would be 1, 0 are allowed"), q.stream(roomy):
        pass  # what the entry leaves out is the service's


def test_streams_are_counted_while_they_are_open() -> None:
    q = quotas(open_streams=2)
    with q.stream(DESK):
        with q.stream(DESK):
            with pytest.raises(Exhausted), q.stream(DESK):
                pass
            with q.stream(OTHER):
                pass
        with pytest.raises(KeyError), q.stream(DESK):
            raise KeyError
        with q.stream(DESK):
            pass


@given(st.integers(1, 600), st.lists(st.integers(0, 20 * SECOND_NS), max_size=200))
def test_the_rate_holds_in_every_minute_and_the_hint_is_exact(limit: int, gaps_ns: list[int]) -> None:
    q, now_ns, taken = quotas(submissions_per_minute=limit), 0, []
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        try:
            q.submit(DESK, now_ns=now_ns)
            taken.append(now_ns)
        except Exhausted as refusal:
            assert refusal.retry_seconds is not None
            later_ns = now_ns + math.ceil(refusal.retry_seconds * SECOND_NS) + 1
            with pytest.raises(Exhausted):
                q.submit(DESK, now_ns=later_ns - 1_000)
            q.submit(DESK, now_ns=later_ns)
            taken.append(later_ns)
            now_ns = later_ns
    # a minute's worth at once, then one by one: never more than twice the limit in any minute
    for start in taken:
        assert sum(start <= at < start + access.MINUTE_NS for at in taken) <= 2 * limit
    total_minutes = (taken[-1] - taken[0]) / access.MINUTE_NS if taken else 0
    assert len(taken) <= limit * (1 + total_minutes) + 1


def test_a_refused_attempt_costs_nothing() -> None:
    q = quotas(submissions_per_minute=60)
    for _ in range(60):
        q.submit(DESK, now_ns=0)
    for _ in range(1_000):
        with pytest.raises(Exhausted, match=r"61, 60 are allowed .* accepted in 1\.000 s"):
            q.submit(DESK, now_ns=0)
    q.submit(OTHER, now_ns=0)
    q.submit(DESK, now_ns=SECOND_NS)


def test_periods_of_a_day_are_not_given_back_by_an_end_and_those_of_refreshes_are_counted_apart() -> None:
    refused: list[tuple[str, str]] = []
    q = quotas(refused, periods_per_day=100, refreshed_periods_per_day=30)
    for number in range(3):
        each = request("desk", 10, request_id=str(number))
        q.spend(DESK, [each], again=True, now_ns=0)
        q.enter(each)
        q.leave(each)
    one = [request("desk", 10)]
    with pytest.raises(Exhausted, match=r"refreshed_periods_per_day would be 40, 30 are allowed") as refusal:
        q.spend(DESK, one, again=True, now_ns=0)
    assert refusal.value.retry_seconds == 28_800, "a third of a day"
    for _ in range(7):
        q.spend(DESK, one, again=False, now_ns=0)  # the refused attempt cost nothing
    with pytest.raises(Exhausted, match=r"periods_per_day would be 110, 100 are allowed"):
        q.spend(DESK, one, again=False, now_ns=0)
    with pytest.raises(Exhausted, match=r"periods_per_day would be 130, 100 are allowed .* ask for less"):
        q.spend(DESK, [request("desk", 100), request("desk", 30)], again=False, now_ns=10 * access.DAY_NS)
    q.spend(OTHER, one, again=True, now_ns=0)
    q.spend(DESK, one, again=True, now_ns=28_800 * SECOND_NS)
    q.spend(None, [request("x", 1_000)], again=True, now_ns=0)
    assert [quota for _, quota in refused] == ["refreshed_periods_per_day", *["periods_per_day"] * 2]


class QuotaMachine(RuleBasedStateMachine):
    """Requests that enter and leave in any order, repeatedly: the usage equals a recount."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = quotas()
        self.live: dict[str, HistoryRequest] = {}
        self.made = 0

    @rule(
        client=st.sampled_from(["desk", "other", ""]),
        minutes=st.integers(1, 50),
        limit=st.none() | st.integers(1, 60),
    )
    def enter(self, client: str, minutes: int, limit: int | None) -> None:
        self.made += 1
        made = request(client, minutes, request_id=str(self.made), limit=limit)
        self.live[made.request_id] = made
        self.quotas.enter(made)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.quotas.leave(self.live.pop(data.draw(st.sampled_from(sorted(self.live)))))

    @invariant()
    def a_recount_agrees(self) -> None:
        requests, periods = Counter[str](), Counter[str]()
        for each in self.live.values():
            if each.client_id:
                minutes = each.end_ns // (60 * SECOND_NS)
                requests[each.client_id] += 1
                periods[each.client_id] += min(minutes, each.limit or minutes)
        assert {c: len(own) for c, own in self.quotas._unfinished.items()} == requests
        assert self.quotas._periods == periods


TestQuotas = QuotaMachine.TestCase
