"""Copy our protos, without comments, to tests/wire/baseline: what a release has promised. Run once for each release.

``buf breaking`` (``make check``) compares the protos with it. The given protocols beside them are as they were given.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TARGET = ROOT / "protos" / "dexorder", ROOT / "tests" / "wire" / "baseline" / "protos" / "dexorder"
GIVEN = {Path("ingest/v1/ingest.proto"), Path("events/v1/user_events.proto")}
"""Files of given protocols, which the baseline has as they were given."""


def main() -> None:
    """Replace the files of the baseline that are ours."""
    for path in TARGET.rglob("*.proto"):
        if path.relative_to(TARGET) not in GIVEN:
            path.unlink()
    for path in sorted(SOURCE.rglob("*.proto")):
        name = path.relative_to(SOURCE)
        if name not in GIVEN:
            (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
            (TARGET / name).write_text(re.sub(r"^ *//[^\n]*\n", "", path.read_text(), flags=re.M))


if __name__ == "__main__":
    main()
