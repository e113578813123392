"""Programs for headless Chromium, run with what `npm ci` in graphdist/viz/web installs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any  # Any: JSON

ROOT = Path(__file__).parents[2]


def browse(script: str, *arguments: str) -> Any:
    """Return the JSON that a script of this folder prints, for tests marked `needs("browser")`."""
    programs = ["node", str(ROOT / "tests" / "viz" / script), str(shutil.which("chromium"))]
    done = subprocess.run(
        [*programs, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
