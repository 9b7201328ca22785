"""Funding rates, ``client.funding``."""

from __future__ import annotations

from dexorder.client.points import AsyncPoints
from dexorder_common.model import datasets


class AsyncFunding(AsyncPoints):
    """Funding rates of perpetual futures: the rows of ``trading.funding``, ascending by ``funding_time``."""

    dataset = datasets.FUNDING
