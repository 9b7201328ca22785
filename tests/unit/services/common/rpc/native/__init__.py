from __future__ import annotations

import pytest

try:
    import dexorder_http2
except ModuleNotFoundError:
    IS_BUILT = False
else:
    IS_BUILT = hasattr(dexorder_http2, "UNARY")  # else of older sources

NEEDS_MODULE = pytest.mark.skipif(not IS_BUILT, reason="dexorder_http2 is not built from these sources")
