"""Parameters of a request to the HTTP API, read as Go's ``Request.Form``: bytes, the body's before the query's. Pure.

Keys and messages are bytes. A text type between the request and the record would replace bytes that are not UTF-8, and
two keys would become one.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from dexorder_common.model.errors import InvalidRequest
from dexorder_gateway.http1.remembered import remembered

MAX_PARAMETERS = 1_000
"""Parameters of a request, in query and form together."""
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Parameters:
    """Parameters of one request.

    Args:
        query: The target after the first ``?``, unchanged.
        form: Body of a form, unchanged; its values come before the query's.
    """

    def __init__(self, query: bytes = b"", form: bytes = b"") -> None:
        count = sum(part.count(b"&") + 1 for part in (query, form) if part)
        if count > MAX_PARAMETERS:
            raise InvalidRequest(f"{count} parameters are given; at most {MAX_PARAMETERS} are accepted")
        self._values: dict[bytes, list[bytes]] = {}
        for pair in filter(None, [*form.split(b"&"), *query.split(b"&")]):
            name, _, value = pair.partition(b"=")
            self._values.setdefault(unquote_to_bytes(name.replace(b"+", b" ")), []).append(value)

    def __contains__(self, name: str) -> bool:
        return name.encode() in self._values

    def count(self, name: str) -> int:
        """Return how many values a parameter has."""
        return len(self._values.get(name.encode(), ()))

    def value(self, name: str) -> bytes | None:
        """Return the bytes of a parameter's first value; None without one."""
        if not (values := self._values.get(name.encode())):
            return None
        if (bad := _BAD_ESCAPE.search(values[0])) is not None:
            shown = values[0][bad.start() : bad.start() + 3].decode(errors="replace")
            raise InvalidRequest(f"{name} has the escape {shown!r}; a percent sign is written as %25")
        return unquote_to_bytes(values[0].replace(b"+", b" "))

    def text(self, name: str) -> str | None:
        """Return a parameter's first value as text; None without one."""
        if (value := self.value(name)) is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{name} {value[:80]!r} is not UTF-8") from None

    def number(self, name: str, bits: int) -> int | None:
        """Return a parameter's first value as a number without a sign; None without one."""
        if (text := self.text(name)) is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 40 and int(text) < 1 << (bits - 1)):
            raise InvalidRequest(f"{name} {text[:80]!r} is not a number of at most {bits} bits without a sign")
        return int(text)

    def group(self) -> str:
        """Return the consumer group, which must be given once."""
        if (count := self.count("group")) != 1:
            raise InvalidRequest(f"one consumer group is expected, but {count} provided")
        return self.text("group") or ""

    def acked(self, partition_name: str, offset_name: str) -> tuple[int, int] | None:
        """Return partition and offset of the record to ack; None if neither is given."""
        partition, offset = self.number(partition_name, 32), self.number(offset_name, 64)
        if partition is None and offset is None:
            return None
        if partition is None or offset is None:
            raise InvalidRequest(f"{partition_name} and {offset_name} either both should be provided or neither")
        return partition, offset


query_of = remembered(Parameters, 512)
"""Returns the parameters of a query; those of consumers are the same in each call."""
