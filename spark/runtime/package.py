"""``python -m spark.runtime.package FILE``: write our packages to a zip file for ``spark-submit --py-files``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("dexorder", "services", "spark")


def write_packages(target: Path) -> Path:
    """Write the zip file; the packages' dependencies must be installed where it is used."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for path in sorted((_ROOT / package).rglob("*.py")):
                archive.write(path, path.relative_to(_ROOT))
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m spark.runtime.package FILE.zip")
    print(write_packages(Path(sys.argv[1])))
