"""Logs of the JVM as JSON, with the names of fields that our own log lines have."""

from __future__ import annotations

import json
from pathlib import Path

_LINE = {
    "event": {"$resolver": "message", "stringified": True},
    "exception": {"$resolver": "exception", "field": "stackTrace", "stackTrace": {"stringified": True}},
    "level": {"$resolver": "level", "field": "name"},
    "logger": {"$resolver": "logger", "field": "name"},
    "service": "spark",
    "timestamp": {
        "$resolver": "timestamp",
        "pattern": {"format": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC"},
    },
}
"""Template of a line. Spark's own structured logs can't be used: they are switched off where Python starts the JVM."""


def write_json_config(folder: Path) -> list[str]:
    """Write a configuration of Log4j into a folder; return the Java options that make the JVM use it."""
    file = folder / "log4j2-json.properties"
    file.write_text(
        "rootLogger.level = warn\n"  # of another level Spark says, not in JSON, that it sets this one
        "rootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\n"
        "appender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = JsonTemplateLayout\n"
        f"appender.stderr.layout.eventTemplate = {json.dumps(_LINE)}\n"
    )
    return [f"-Dlog4j2.configurationFile={file.as_uri()}"]
