"""Place of a span in a trace, as text that can be stored and sent. Pure.

A context exists only for what is recorded: work without one is not traced by any part. Ids are those of W3C Trace
Context (https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

CONTEXT_LENGTH = 48
"""Hexadecimal digits of a context as text: 32 of the trace, 16 of the span."""
_FORM = re.compile(rf"[0-9a-f]{{{CONTEXT_LENGTH}}}", re.ASCII)


class TraceContext(NamedTuple):
    """A span that is recorded: 32 hexadecimal digits of its trace, and 16 of its own."""

    trace_id: str
    span_id: str

    @property
    def text(self) -> str:
        """The context as ``read_context`` takes it."""
        return self.trace_id + self.span_id

    @property
    def traceparent(self) -> str:
        """Value of the header ``traceparent``, with the flag "sampled"."""
        return f"00-{self.trace_id}-{self.span_id}-01"

    def derived(self, name: str) -> TraceContext:
        """Return the context of the span with a name in this trace, the same in every process and after a restart."""
        digest = hashlib.sha256(f"{self.trace_id} {name}".encode()).hexdigest()
        return TraceContext(self.trace_id, digest[: CONTEXT_LENGTH - len(self.trace_id)])


def read_context(text: str) -> TraceContext | None:
    """Return the context in a text; None if it is not one. Ids of zeros only are invalid."""
    if not _FORM.fullmatch(text):
        return None
    context = TraceContext(text[:32], text[32:])
    return context if context.trace_id.strip("0") and context.span_id.strip("0") else None
