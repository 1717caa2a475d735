"""``python -m rotationout.cli``, for torchrun and where the package is not installed."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
