from __future__ import annotations

from pathlib import Path

import pytest

from dexorder_udsource.config import NUMAFLOW_FOLDER, UdsourceSettings


def test_socket_is_numaflows_if_its_folder_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_UDSOURCE_NUMAFLOW_FOLDER", str(tmp_path))
    settings = UdsourceSettings()
    assert settings.socket == tmp_path / "source.sock"
    assert settings.server_info_file == tmp_path / "sourcer-server-info"


@pytest.mark.parametrize("folder", ["", "/no/such/folder"])
def test_no_folder_no_socket(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_UDSOURCE_NUMAFLOW_FOLDER", folder)
    settings = UdsourceSettings()
    assert settings.socket is None and settings.server_info_file is None


@pytest.mark.parametrize(("socket", "path"), [("", None), ("/a/b.sock", Path("/a/b.sock"))])
def test_explicit_socket_wins(socket: str, path: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_UDSOURCE_NUMAFLOW_FOLDER", str(tmp_path))
    monkeypatch.setenv("DEXORDER_UDSOURCE_SOCKET", socket)
    assert UdsourceSettings().socket == path


def test_default_folder_is_numaflows_mount() -> None:
    assert UdsourceSettings.model_fields["numaflow_folder"].default == NUMAFLOW_FOLDER == Path("/var/run/numaflow")
