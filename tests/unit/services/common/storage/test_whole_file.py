"""Files that are replaced whole."""

import os
import threading
from pathlib import Path

import pytest

from dexorder_common.storage.whole_file import replace_text


def test_replaced_file_has_the_new_text_and_no_other_file_remains(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_text(path, "old")
    replace_text(path, "närmare", synced=True)
    assert path.read_bytes() == "närmare".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    replace_text(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_text(path, "new", synced=True)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_text(tmp_path / "absent" / "state.json", "new")


def test_readers_see_whole_texts_only(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    texts = [letter * 200_000 for letter in "ab"]
    replace_text(path, texts[0])
    ended = threading.Event()

    def write() -> None:
        for number in range(100):
            replace_text(path, texts[number % 2])
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        assert path.read_text() in texts
    writer.join()
