"""The file by which Numaflow learns that a source container listens and which contract it speaks."""

from __future__ import annotations

import json
from pathlib import Path

END_MARKER = "U+005C__END__"
"""The reader polls until the file ends with this text; a newline behind it would keep it waiting."""

# The dataplane gates by language and version and calls NackFn only for Python from 0.11.0 on. The version is that of
# the Python SDK whose contract this service keeps, as its own would be refused; "-z" means the stable release.
CONTRACT = {
    "protocol": "uds",
    "language": "python",
    "minimum_numaflow_version": "1.4.0-z",
    "version": "0.14.0",
    "metadata": {},
}


def content() -> str:
    """What the file holds."""
    return json.dumps(CONTRACT) + END_MARKER


def write(path: Path) -> None:
    """Put the file in place, whole; call once the socket listens.

    Raises:
        OSError: The folder is missing or not writable.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(content())
    fresh.replace(path)


def remove(path: Path) -> None:
    """Take away what an earlier process left; call before the socket listens."""
    path.unlink(missing_ok=True)
