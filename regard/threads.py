"""How the threads of a process wait for each other. torch is not imported here: it must not have been imported yet."""

import os
import sys

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # a user's own setting of any of them wins

# 40 steps of `dates`, two threads on two cores, seconds on quiet cores and beside three busy loops
# (`python -m benchmarks threads`): OpenMP's default 3.4 and 28, one thread 4.4 and 8.7, no spins 4.7 and 10.8,
# 500 spins 4.0 and 10.2, 2,000 spins 3.5 and 10.8. Few spins keep the speed of quiet cores and lose little on busy
# ones. GNU's OpenMP, which torch has on Linux, counts spins; others know only the policy.
SETTINGS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "2000"}


def limit_spinning() -> bool:
    """Let waiting threads spin briefly, then sleep; True if that was set. Programs call it first, imports never.

    OpenMP reads the variables once, when torch is imported; later it is too late, and nothing is set.
    """
    if "torch" in sys.modules or any(name in os.environ for name in VARIABLES):
        return False
    os.environ |= SETTINGS
    return True
