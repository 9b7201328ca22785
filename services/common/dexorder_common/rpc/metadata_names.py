"""Names of metadata that clients and servers share."""

AUTHORIZATION = "authorization"
"""Has the caller's token, as ``Bearer TOKEN``."""
