"""The conformance runner: recorded cases of `tf.distribute` against graphdist.

    python tests/conformance/run.py FILE... [--only TEXT]

Prints passed, failed and declared cases per family, then the first difference of each failure, and
ends with 1 if one failed. A declared case that in fact passes is named too.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

    from tests.conformance.runner import main

    sys.exit(main(sys.argv[1:]))
