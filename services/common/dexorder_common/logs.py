"""Structured logs on standard error: text for people or JSON for machines, without the values of secrets."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

_SECRET_WORDS = ("password", "secret", "token", "authorization", "api_key", "apikey", "private_key")


def _hide_secrets(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key in event:
        if any(word in key.lower() for word in _SECRET_WORDS):
            event[key] = "***"
    return event


def configure(service: str, *, level: str = "info", style: Literal["console", "json"] = "console") -> None:
    """Send records of structlog and the standard library to standard error; called once in a process."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
    ]
    last: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if style == "json"
        # plain: the rich tracebacks show local variables, and with them tokens and passwords
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
