"""Spark home whose Python processes load pyspark from the installed package.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on the path of each Python process it starts. A module in an
archive is compiled again in every process, which takes 0.5 s of processor time for each of the four that start with the
driver. Before the first data source, Spark also starts one to look for packages named ``pyspark_*``, unless the archive
is missing. This home has links to everything but the archive.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pyspark

HOME = Path(sys.prefix).resolve() / "share" / "dexorder" / f"spark-home-{pyspark.__version__}"
_LINKED = ("bin", "jars")


def write_home(home: Path = HOME) -> None:
    """Create the home for the installed pyspark; links of an earlier installation are replaced."""
    package = Path(pyspark.__file__).resolve().parent
    home.mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        new = home / f".{name}"
        new.unlink(missing_ok=True)
        new.symlink_to(package / name)
        new.replace(home / name)


def home_environment(home: Path = HOME) -> dict[str, str]:
    """Return the variables with which Spark uses the home; none if it was not created, or Python needs the archive."""
    usable = (home / "bin" / "spark-submit").is_file() and all(find_spec(name) for name in ("pyspark", "py4j"))
    return {"SPARK_HOME": str(home)} if usable else {}
