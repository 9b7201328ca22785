"""Where the driver's Java classes are kept, read and verified once, for every later start to map.

Most of a driver's start goes into finding, parsing and verifying the classes of Spark's jars; the JDK's class-data
sharing (JEP 350) keeps them in a file that fits one Java and one class path. `spark.runtime.rehearsal` writes
it. A file that does not fit is passed over by Java without a word, so nothing depends on it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from dexorder.setup.java import Java


def archive_of(java: Java) -> Path:
    """Where this Python environment keeps the classes for one Java; it may not be there."""
    return Path(sys.prefix) / "share" / "dexorder" / f"spark-{pyspark.__version__}-java-{java.version}.jsa"


def options_with(archive: Path) -> list[str]:
    """Java's options to start with the archive; none if it is not there."""
    if not archive.is_file() or " " in str(archive):  # Spark splits its options at blanks
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
