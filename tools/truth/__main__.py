"""`python -m graphdist.tools.truth`."""

import sys

from graphdist.tools.truth.command import main

if __name__ == "__main__":
    sys.exit(main())
