"""How the threads of a process wait for each other. torch is not imported here: it must not have been imported yet."""

import os
import sys

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # a user's own setting of any of them wins


def wait_passively() -> bool:
    """Let waiting threads sleep instead of spin; True if that was set. Programs call it first, `import regard` never.

    OpenMP reads the variables once, when torch is imported; later it is too late, and nothing is set.
    """
    if "torch" in sys.modules or any(name in os.environ for name in VARIABLES):
        return False
    os.environ["OMP_WAIT_POLICY"] = "passive"
    return True
