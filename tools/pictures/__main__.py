"""`python -m graphdist.tools.pictures`."""

import sys

from graphdist.tools.pictures.command import main

sys.exit(main())
