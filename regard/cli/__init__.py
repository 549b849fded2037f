"""The command line: `app` has the verbs, `runner` exit codes and errors, `inputs` and `io` input and output.

A verb parses, calls one function and prints. What Python users and a server need too belongs below.
"""

from .app import main

__all__ = ["main"]
