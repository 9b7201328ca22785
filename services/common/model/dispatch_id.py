"""Ids of dispatches: ``"{number}-{token}"``. Pure.

The relay issues the numbers, and a later dispatch always has a larger one. So a number orders what dispatches bring,
without any clock. The token is random: whoever knows the number of a dispatch cannot guess its id.
"""

from __future__ import annotations

import re
import secrets

from dexorder.services.common.model.errors import InvalidRequest

MAX_NUMBER = 2**62 - 1
MIN_TOKEN_LENGTH = 16
"""Hexadecimal digits of a token: 64 random bits."""
_FORM = re.compile(rf"([1-9][0-9]{{0,18}})-[0-9a-f]{{{MIN_TOKEN_LENGTH},64}}", re.ASCII)


def new_dispatch_id(number: int, token: str) -> str:
    """Return the id of a dispatch; InvalidRequest if a part is not allowed."""
    dispatch_id = f"{number}-{token}"
    number_of(dispatch_id)
    return dispatch_id


def number_of(dispatch_id: str) -> int:
    """Return the number of a dispatch, 1 to ``MAX_NUMBER``; InvalidRequest if this is not the id of one."""
    form = _FORM.fullmatch(dispatch_id)
    if form is None or (number := int(form[1])) > MAX_NUMBER:
        raise InvalidRequest(
            f"job_id {dispatch_id[:64]!r} is not NUMBER-TOKEN with a number from 1 to {MAX_NUMBER} and "
            f"{MIN_TOKEN_LENGTH} to 64 hexadecimal digits"
        )
    return number


class DispatchNumbers:
    """Source of the numbers of dispatches and retractions, each larger than all before.

    Attributes:
        last: The last number that was issued.
    """

    def __init__(self) -> None:
        self.last = 0

    def restart(self, largest: int, *, wall_ns: int) -> None:
        """Continue above every number that was issued before, the largest known of which is ``largest``.

        Where a database older than the last dispatches was restored, those without a trace in the tables are not known.
        So a start also leaves out as many numbers as microseconds have passed since 1970, which is more than can have
        been issued. A wrong clock makes the gap longer or shorter; it never makes a number smaller.
        """
        self.last = max(self.last, largest, wall_ns // 1_000)

    def next(self) -> int:
        """Return a new number."""
        self.last += 1
        return self.last

    def new_id(self) -> str:
        """Return the id of a new dispatch."""
        return new_dispatch_id(self.next(), secrets.token_hex(MIN_TOKEN_LENGTH // 2))
