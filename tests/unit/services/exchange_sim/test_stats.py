from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dexorder_exchange_sim.stats import RollingSum


@given(steps=st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.4, 1.0, 2.5]), st.integers(1, 5)), max_size=40))
def test_window_holds_the_last_seconds_and_remembers_the_most(steps: list[tuple[float, int]]) -> None:
    window, now_s, all_items, sums = RollingSum(1), 0.0, list[tuple[float, int]](), [0]
    for pause, amount in steps:
        now_s += pause
        all_items.append((now_s, amount))
        sums.append(sum(a for t, a in all_items if t > now_s - 1))
        assert window.add(amount, now_s=now_s) == sums[-1]
    assert window.most == max(sums)
