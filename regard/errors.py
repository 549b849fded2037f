"""The one exception that is shown to people as a sentence."""


class UserError(Exception):
    """What the user can put right. The message says what is wrong, what was expected and what to do; exit code 2."""
