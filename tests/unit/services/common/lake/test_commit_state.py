import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.commit_state import CommitState, state_of
from dexorder_common.lake.tables import OHLC
from tests.fakes.pages import control
from tests.fakes.staged import files_of_pages

offsets = st.dictionaries(st.integers(0, 40), st.integers(0, 2**62), max_size=5)
by_source = st.dictionaries(st.text(max_size=20), offsets, max_size=3)
topics = st.dictionaries(st.text(max_size=20), st.text(max_size=5), max_size=3)
epochs = st.dictionaries(st.text(max_size=20), offsets.filter(bool), max_size=3)
states = st.builds(CommitState, by_source, st.integers(0, 2**62), resume=by_source, topics=topics, epochs=epochs)


def test_properties_of_the_summary() -> None:
    state = CommitState({"b:1": {1: 20, 0: 10}, "a:1": {}}, 7, "file:///claims.parquet", {"b:1": {0: 9}}, {"b:1": "x"})
    assert state.encode() == {
        "dexorder.offsets": '{"a:1":{},"b:1":{"0":10,"1":20}}',
        "dexorder.resume": '{"b:1":{"0":9}}',
        "dexorder.topics": '{"b:1":"x"}',
        "dexorder.dispatch": "7",
        "dexorder.claims": "file:///claims.parquet",
    }
    assert CommitState.decode({"dexorder.offsets": "{}", "dexorder.dispatch": "0"}) == CommitState()


@given(states)
def test_a_state_is_read_as_it_was_written(state: CommitState) -> None:
    assert CommitState.decode(state.encode()) == state


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"dexorder.offsets": "{}"},
        {"dexorder.offsets": "[]", "dexorder.dispatch": "1"},
        {"dexorder.offsets": '{"a": 1}', "dexorder.dispatch": "1"},
        {"dexorder.offsets": "{", "dexorder.dispatch": "1"},
        {"dexorder.offsets": "{}", "dexorder.dispatch": "one"},
    ],
)
def test_a_summary_that_is_not_ours_has_no_state(summary: dict[str, str]) -> None:
    assert CommitState.decode(summary) is None


@given(states, offsets, st.integers(0, 2**62))
def test_no_offset_and_no_number_moves_back(state: CommitState, ends: dict[int, int], dispatch: int) -> None:
    after = state.after("s", ends, dispatch=dispatch)
    for source, done in [("s", ends), *state.offsets.items()]:
        for partition, end in done.items():
            assert not end or after.has(source, (partition, end - 1))
    assert after.dispatch == max(dispatch, state.dispatch)
    assert not after.claims
    assert state.after("s", ends, topic_id="x").topics == {**state.topics, "s": "x"}
    assert after.topics == state.topics


def test_epochs_are_those_of_the_last_batch_of_each_partition() -> None:
    state = CommitState().after("s", {0: 5, 1: 5}, epochs={0: 3, 1: 4}).after("s", {1: 9}, epochs={1: 6})
    assert state.epochs == {"s": {0: 3, 1: 6}}
    assert CommitState.decode(state.encode()) == state
    assert state.after("s", {0: 6}).epochs == {"s": {1: 6}}, "unknown, so nothing can be compared"
    assert state.after("other", {0: 6}).epochs == state.epochs


def test_a_batch_that_is_committed_but_not_reported_is_repeated() -> None:
    state = CommitState().after("s", {0: 10}, resume={0: 0, 1: 4})
    assert state.position("s") == {0: 0, 1: 4}
    state = state.after("s", {1: 9}, resume={0: 10, 1: 4})
    assert state.position("s") == {0: 10, 1: 4}
    assert state.has("s", (0, 9)) and state.has("s", (1, 8)) and not state.has("s", (1, 9))
    assert state.position("other") == {}


def test_a_log_that_begins_anew_is_counted_from_its_start() -> None:
    state = CommitState().after("s", {0: 10, 1: 5}, resume={0: 8, 1: 5}).without("s", {0})
    assert state.position("s") == {1: 5}
    assert state.has("s", (1, 4)) and not state.has("s", (0, 0))
    assert state.after("s", {0: 1}, resume={0: 0, 1: 5}).position("s") == {0: 0, 1: 5}


def test_snapshots_without_a_state_keep_that_of_their_ancestor(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    assert state_of(tables.load_table(OHLC.name).metadata) == CommitState()
    commit_files(tables.load_table(OHLC.name), properties=CommitState({"s": {0: 9}}, 3, "claims").encode())
    for minute in range(3):
        files_of_pages(tables.load_table(OHLC.name), [control(minute, 1)], commit=True)
    assert state_of(tables.load_table(OHLC.name).metadata) == CommitState({"s": {0: 9}}, 3, "claims")
