"""`python -m graphdist.tools.bench`."""

import sys

from graphdist.tools.bench.command import main

sys.exit(main())
