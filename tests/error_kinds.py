"""The kinds of errors that every service has, for tests of each of them."""

from __future__ import annotations

from dexorder_common.model import errors

KINDS = [kind for kind in errors.SuiteError.__subclasses__() if kind.__module__ == errors.__name__]
"""Those of the common module; which others exist depends on what a run has imported."""
