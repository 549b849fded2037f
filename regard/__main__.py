"""`python -m regard` runs the same program as `regard`."""

import sys

from .cli import main

sys.exit(main())
