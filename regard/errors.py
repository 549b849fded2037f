"""The exception for errors that the user can fix."""


class UserError(Exception):
    """An error that the user can fix; exit code 2. The message names the value, the expectation and the remedy."""
