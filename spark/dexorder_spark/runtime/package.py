"""``python -m dexorder_spark.runtime.package FILE``: write our packages as a zip file for ``--py-files``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from dexorder_common.packages import package_folders


def write_packages(target: Path) -> Path:
    """Write the zip file; the packages' dependencies must be installed where it is used."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in package_folders():
            for path in sorted(folder.rglob("*.py")):
                archive.write(path, path.relative_to(folder.parent))
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dexorder_spark.runtime.package FILE.zip")
    print(write_packages(Path(sys.argv[1])))
