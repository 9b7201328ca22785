"""Pages of lists: their size, and the tokens that continue them. Pure."""

from __future__ import annotations

from dexorder_common.model.errors import InvalidRequest

PAGE_SIZE, MAX_PAGE_SIZE = 100, 1_000


def page_size(wanted: int) -> int:
    """Return the size of a page; InvalidRequest if it is too large."""
    if wanted > MAX_PAGE_SIZE:
        raise InvalidRequest(f"page_size {wanted} is over {MAX_PAGE_SIZE}")
    return wanted or PAGE_SIZE


def read_token(text: str) -> int | None:
    """Return the sequence number in a token; None for the first page."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest(f"page_token {text[:32]!r} is invalid; pass the next_page_token of the previous answer")
    return int(text)
