"""`python -m graphdist.tools.documents`."""

import sys

from graphdist.tools.documents.command import main

sys.exit(main())
