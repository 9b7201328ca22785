"""What the set-up raises."""


class SetupError(Exception):
    """Something the suite needs is missing or wrong; the message is one sentence and says what to do."""


class NoJavaError(SetupError):
    """No Java runtime of a usable version was found."""


class ResolveError(SetupError):
    """A resolver could not bring every jar; trying again may help."""
