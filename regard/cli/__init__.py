"""The command line: `app` has the verbs, the other modules what they share."""

from .app import main

__all__ = ["main"]
