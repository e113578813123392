"""`python -m graphdist.tools.truth`."""

import sys

from graphdist.tools.truth.command import main

sys.exit(main())
