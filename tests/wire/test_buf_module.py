"""The protos as a buf module of another workspace, by the commands of docs/other-languages.md."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "other-languages.md").read_text()
PROTO = """syntax = "proto3";
package acme;
import "dexorder/market/v1/ohlcv.proto";
import "dexorder/udf/v1/udf_service.proto";
message Signal { dexorder.market.v1.OHLCV candle = 1; }
"""


def test_another_workspace_depends_on_the_protos(tmp_path: Path) -> None:
    found = re.search(r"^buf export .*$", PAGE, re.M)
    workspace = re.search(r"```yaml\n(# buf.yaml\n.*?)```", PAGE, re.S)
    assert found and workspace
    _, export, source, path, protos, output, target = shlex.split(found[0])
    assert source == "$REPOSITORY.git#tag=v0.1.0"  # the text; a checkout without tags exports its files
    subprocess.run(["buf", export, str(ROOT), path, str(ROOT / protos), output, target], cwd=tmp_path, check=True)
    (tmp_path / "buf.yaml").write_text(workspace[1])
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto" / "signal.proto").write_text(PROTO)
    image = subprocess.run(["buf", "build", "-o", "-"], cwd=tmp_path, capture_output=True, check=True).stdout
    assert b"acme" in image and b"dexorder.market.v1" in image
