"""``python -m dexorder.spark.runtime.package FILE``: write the package as a zip file of ``spark-submit --py-files``."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import dexorder

_PACKAGE = Path(dexorder.__file__).parent


def write_packages(target: Path) -> Path:
    """Write the zip file; the package's dependencies must be installed where it is used."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, subfolders, files in os.walk(_PACKAGE, followlinks=True):  # services and spark are links
            subfolders.sort()
            for path in (Path(folder, name) for name in sorted(files) if name.endswith(".py")):
                archive.write(path, path.relative_to(_PACKAGE.parent))
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dexorder.spark.runtime.package FILE.zip")
    print(write_packages(Path(sys.argv[1])))
