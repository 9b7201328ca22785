"""Spans that the code under test has ended, as one process exports them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dexorder_common import tracing


@dataclass
class Exported:
    """The spans so far."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def path(self, span: ReadableSpan) -> list[str]:
        """Return the names from the root of the trace to a span; a parent that is not exported is ``?``."""
        known = {each.context.span_id: each for each in self.spans if each.context}
        if span.parent is None:
            return [span.name]
        parent = known.get(span.parent.span_id)
        return [*(self.path(parent) if parent else ["?"]), span.name]


@contextmanager
def exporting() -> Iterator[Exported]:
    """Trace this process until the block ends."""
    made = Exported()
    tracing.export("test", made.exporter, SimpleSpanProcessor)
    try:
        yield made
    finally:
        tracing.shutdown()
