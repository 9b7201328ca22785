"""``python -m dexorder.spark.runtime.package FILE``: write the package as a zip file of ``spark-submit --py-files``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = {"dexorder": "dexorder", "services": "dexorder/services", "spark": "dexorder/spark"}


def write_packages(target: Path) -> Path:
    """Write the zip file; the packages' dependencies must be installed where it is used."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, package in _FOLDERS.items():
            for path in sorted((_ROOT / folder).rglob("*.py")):
                archive.write(path, Path(package) / path.relative_to(_ROOT / folder))
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dexorder.spark.runtime.package FILE.zip")
    print(write_packages(Path(sys.argv[1])))
