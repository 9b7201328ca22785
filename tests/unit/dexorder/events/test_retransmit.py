"""Rules of retransmission against a simple model, and named cases."""

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dexorder.events.retransmit import RetransmitQueue

QUERY_NS = 5_000
WINDOW = 3


def new_queue() -> RetransmitQueue:
    return RetransmitQueue(base_ns=100, max_ns=1_000, query_ns=QUERY_NS, window=WINDOW, jitter=lambda: 1.0)


class Machine(RuleBasedStateMachine):
    """At most a window is open, no waiting event is lost, no settled event is sent again."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = new_queue()
        self.now = 0
        self.alive: list[str] = []
        self.open: set[str] = set()
        self.made = 0

    @rule()
    def add(self) -> None:
        self.made += 1
        self.queue.add([f"e{self.made}"])
        self.alive.append(f"e{self.made}")

    @rule()
    def send(self) -> None:
        event_id = self.queue.next(now_ns=self.now)
        if event_id is not None:
            assert event_id in self.alive
            self.queue.sent(event_id, now_ns=self.now)

    @precondition(lambda self: self.alive)
    @rule(data=strategies.data(), final=strategies.booleans())
    def answer(self, data: strategies.DataObject, final: bool) -> None:
        event_id = data.draw(strategies.sampled_from(self.alive))
        if final:
            assert self.queue.settled(event_id) and not self.queue.settled(event_id)
            self.alive.remove(event_id)
        else:
            self.queue.queued(event_id, now_ns=self.now)

    @rule(ns=strategies.integers(1, 20_000))
    def wait(self, ns: int) -> None:
        self.now += ns

    @rule()
    def reconnect(self) -> None:
        self.queue.reconnected()

    @rule()
    def everything_comes_again(self) -> None:
        """Given time and a gateway that answers Q, every live event goes out."""
        self.now += QUERY_NS
        left = set(self.alive)
        while (event_id := self.queue.next(now_ns=self.now)) is not None:
            self.queue.sent(event_id, now_ns=self.now)
            self.queue.queued(event_id, now_ns=self.now)
            left.discard(event_id)
        assert not left

    @invariant()
    def as_many_as_live(self) -> None:
        assert len(self.queue) == len(self.alive) and all(each in self.queue for each in self.alive)
        assert len(self.queue._open) <= WINDOW


TestResends = Machine.TestCase
TestResends.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


def sent(queue: RetransmitQueue, now_ns: int) -> list[str]:
    found = []
    while (event_id := queue.next(now_ns=now_ns)) is not None:
        queue.sent(event_id, now_ns=now_ns)
        found.append(event_id)
    return found


def test_intervals_double_up_to_the_limit() -> None:
    queue, now, waits = new_queue(), 0, []
    queue.add(["e"])
    for _ in range(6):
        assert sent(queue, now) == ["e"]
        due = queue.next_due_ns()
        assert due is not None and sent(queue, due - 1) == []
        waits.append(due - now)
        now = due
    assert waits == [100, 200, 400, 800, 1_000, 1_000]


def test_a_queued_event_frees_the_window_and_is_queried_later() -> None:
    queue = new_queue()
    queue.add(["a", "b", "c", "d"])
    assert sent(queue, 0) == ["a", "b", "c"]
    assert queue.queued("b", now_ns=10) and not queue.queued("b", now_ns=11) and not queue.queued("x", now_ns=11)
    assert sent(queue, 20) == ["d"]
    for each in "acd":
        queue.settled(each)
    assert sent(queue, 5_009) == [] and sent(queue, 5_010) == ["b"]
