"""Where on this machine what belongs to its user is kept."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """``dexorder`` below ``XDG_STATE_HOME``, else below ``~/.local/state``; may not be there yet."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "dexorder"
