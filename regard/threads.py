"""How the threads of a process wait for each other. torch is not imported here: it must not have been imported yet."""

import os
import sys

# 20 steps of `dates`, two threads on two cores with a load of 8 to 12 from other programs, seconds in two rounds:
# passive 14 and 13, 100 spins 12 and 11, 1000 spins 13 and 16, 10,000 spins 27 and 33, OpenMP's default 161, one thread
# 10 and 9. So spins of any useful length cost time there; `passive` is understood by OpenMP of other systems too.
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # a user's own setting of any of them wins


def wait_passively() -> bool:
    """Let waiting threads sleep instead of spin; True if that was set. Programs call it first, `import regard` never.

    OpenMP reads the variables once, when torch is imported; later it is too late, and nothing is set.
    """
    if "torch" in sys.modules or any(name in os.environ for name in VARIABLES):
        return False
    os.environ["OMP_WAIT_POLICY"] = "passive"
    return True
