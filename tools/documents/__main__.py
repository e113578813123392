"""`python -m graphdist.tools.documents`."""

import sys

from graphdist.tools.documents.pages import main

sys.exit(main())
