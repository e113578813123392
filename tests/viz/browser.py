"""Programs for headless Chromium, run with what `npm ci` in graphdist/viz/web installs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "graphdist" / "viz" / "web" / "node_modules"


def browse(script: str, *arguments: str, needs: str = "playwright-core") -> Any:
    """Return the JSON that a script of this folder prints; skips, by name, what is not there."""
    chromium = shutil.which("chromium")
    missing = [name for name in ("chromium", "node") if shutil.which(name) is None]
    missing += [
        f"{name} (npm ci in graphdist/viz/web)"
        for name in dict.fromkeys(("playwright-core", needs))
        if not (MODULES / name).is_dir()
    ]
    if missing or chromium is None:
        pytest.skip(f"not installed: {', '.join(missing)}")
    command = ["node", str(ROOT / "tests" / "viz" / script), chromium, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
