from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDS_MODULE = pytest.mark.skipif(find_spec("dexorder_http2") is None, reason="dexorder_http2 is not built")
