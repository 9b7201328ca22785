"""Commands for the suite: ``up``, ``serve``, ``status``, ``doctor``, ``backup``, ``maintain``."""
