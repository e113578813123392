"""Makes the examples importable: they are scripts beside the package, not a part of it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples"))
