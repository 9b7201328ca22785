"""Folders of the project, independent of a test module's place."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXCHANGES = ROOT / "services" / "common" / "dexorder_common" / "shipped_exchanges"
"""Exchanges files that the wheel contains."""
