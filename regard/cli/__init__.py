"""The command line: `app` has the verbs, `runner` exit codes and error messages, `io` input and output of lines."""

from .app import main

__all__ = ["main"]
