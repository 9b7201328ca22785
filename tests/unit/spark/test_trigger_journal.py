"""Journal of the triggers: what is written is read, what is damaged is not, and the batch before is used then."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder.spark.cep.journal import Damaged, Entry, Journal, TopicPosition

OFFSETS = st.dictionaries(st.integers(0, 50), st.integers(0, 2**62), max_size=4)
ENTRIES = st.builds(
    Entry,
    batch=st.integers(0, 10**12),
    change=st.integers(0, 2**62),
    positions=st.dictionaries(st.text(max_size=9), st.builds(TopicPosition, OFFSETS, st.text(max_size=5)), max_size=3),
    recent=st.dictionaries(
        st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.integers(0, 2**62)), max_size=2
    ),
    state=st.binary(max_size=200),
    events=st.lists(st.binary(max_size=30), max_size=5).map(tuple),
)


@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert Entry.decode(entry.encode()) == entry


@given(ENTRIES, st.data())
def test_a_file_with_one_other_byte_or_cut_short_is_damaged(entry: Entry, data: st.DataObject) -> None:
    content = bytearray(entry.encode())
    place = data.draw(st.integers(0, len(content) - 1))
    cut = bytes(content[:place])
    content[place] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(content), cut):
        with pytest.raises(Damaged):
            Entry.decode(broken)


def test_the_batch_before_is_read_if_the_newest_is_damaged_and_older_ones_are_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.read() is None
    for batch in range(4):
        journal.write(Entry(batch, 0, {}, state=bytes([batch])))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    files[-1].write_bytes(files[-1].read_bytes()[:-1])
    (tmp_path / "00000000000000000004.tmp").write_bytes(b"cut off")
    found = Journal(tmp_path).read()
    assert found is not None and found.batch == 2
    assert not [*tmp_path.glob("*.tmp")]
