"""What a check raises that does not look at a module."""


class NotChecked(Exception):  # noqa: N818 (an answer, not an error)
    """A check cannot be made on this module; the message says why."""


class NotApplicable(NotChecked):
    """There is nothing to check in this module: it has no mask, no cache, no positions."""
