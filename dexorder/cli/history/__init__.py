"""Commands for history: ``history``, ``read``, ``requests``, ``coverage``, ``verify``, ``markets``."""
