from __future__ import annotations

from pathlib import Path

from services.udsource import server_info
from services.udsource.config import UdsourceSettings


def test_file_is_json_with_the_marker_right_behind(tmp_path: Path) -> None:
    path = tmp_path / "sourcer-server-info"
    server_info.write(path)
    assert path.read_bytes() == (
        b'{"protocol": "uds", "language": "python", "minimum_numaflow_version": "1.4.0-z", '
        b'"version": "0.14.0", "metadata": {}}U+005C__END__'
    )
    assert [p.name for p in tmp_path.iterdir()] == ["sourcer-server-info"]
    server_info.remove(path)
    server_info.remove(path)
    assert not path.exists()


def test_file_stands_beside_the_socket_unless_told_otherwise() -> None:
    def file_of(**given: object) -> Path | None:
        return UdsourceSettings(**given).server_info_file  # type: ignore[arg-type]

    assert file_of(socket="/a/source.sock") == Path("/a/sourcer-server-info")
    assert file_of(socket="/a/source.sock", server_info="/b/info") == Path("/b/info")
    assert file_of(socket="", server_info="/b/info") is None
