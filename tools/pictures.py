"""`python -m graphdist.tools.pictures`: take the pictures of docs/images, with Chromium.

Each is the page of `graphdist-viz` for a step of an example, as a browser shows it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import graphdist as gd
from graphdist.tools.viz import main as show

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {"page": "train_digits.py:make_step"}
"""By the name of the picture, the step of an example that it shows."""
SIZE = (1440, 720)
_MILLISECONDS_TO_DRAW = 8000


def main() -> int:
    """Take all pictures; returns 2 where there is no browser."""
    browser = shutil.which("chromium")
    if browser is None:
        print("pictures are taken with chromium, which is not installed", file=sys.stderr)
        return 2
    gd.config.set_logical_cpu_devices(4)
    for name, step in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.html")
            show([f"{ROOT / 'examples'}/{step}", "--strategy", "mirrored:4", "-o", str(page)])
            take(browser, page, ROOT / "docs" / "images" / f"{name}.png")
    return 0


def take(browser: str, page: Path, picture: Path) -> None:
    """Have a browser draw a page, and keep what it shows."""
    width, height = SIZE
    command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"]
    command += [f"--window-size={width},{height}", f"--screenshot={picture}"]
    command += [f"--virtual-time-budget={_MILLISECONDS_TO_DRAW}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
