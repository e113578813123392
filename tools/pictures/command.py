"""`python -m graphdist.tools.pictures`: make the pictures of docs/images, some with Chromium.

    python -m graphdist.tools.pictures page
    python -m graphdist.tools.pictures replicas

`replicas.py` draws `replicas.svg`. Each other picture is the page of `graphdist-viz` for a step of
an example, as a browser shows it, in a light theme and in a dark one: `page.png` and
`page-dark.png`. Names as arguments choose pictures.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import graphdist as gd
from graphdist.config import at_least_cpu_devices
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.pictures.replicas import drawn_step
from graphdist.tools.viz import main as show

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
_DEVICES = 4


@dataclass(frozen=True)
class Picture:
    """A picture of a page: the example's step, the command's options, and the page's address."""

    step: str
    options: tuple[str, ...] = ("--strategy", "mirrored:4")
    address: str = ""
    earlier: tuple[str, ...] = ()
    """The options of the earlier program with which the page compares the step, if any."""
    size: tuple[int, int] = (960, 720)
    """The pixels of the page. Documents show it at a width of about 800."""


PICTURES = {
    "page": Picture("train_digits.py:make_step", address="#node=%2591"),
    "pass": Picture(
        "train_digits.py:make_step",
        address="#pass=simplify&node=%2540&tab=changes",
        size=(960, 1000),
    ),
    "comparison": Picture("train_digits.py:make_step", earlier=("--strategy", "one_device")),
    "topology": Picture(
        "aot_transformer.py:make_step",
        ("--topology", "v5e:4x4"),
        "#tab=report&colour=time",
        size=(1100, 1000),
    ),
}
REPLICAS = "replicas"
_SCALE = 1.5
THEMES = {"": 1, "-dark": 0}
"""The colour scheme that Chromium reports to the page, by the end of a picture's name."""
_MILLISECONDS_TO_DRAW = 8000


@console_tool("pictures")
def main(arguments: Sequence[str] | None = None) -> int:
    """Take the pictures of these names, or all; returns 2 where there is no browser."""
    parser = CommandParser(__doc__)
    add = parser.add_argument
    known = [*PICTURES, REPLICAS]
    add("names", nargs="*", metavar="name", choices=[[], *known], help=", ".join(known))
    names = parser.parse_args(arguments).names or known
    if REPLICAS in names:
        with at_least_cpu_devices(_DEVICES):  # of the other pictures
            drawing = drawn_step(ROOT / "docs" / "index.md")
        (IMAGES / f"{REPLICAS}.svg").write_text(drawing, encoding="utf-8")
    names = [name for name in names if name != REPLICAS]
    if not names:
        return 0
    browser = shutil.which("chromium")
    if browser is None:
        print("pictures are taken with chromium, which is not installed", file=sys.stderr)
        return 2
    gd.config.set_logical_cpu_devices(_DEVICES)
    for name in names:
        picture = PICTURES[name]
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.html")
            step = f"{ROOT / 'examples'}/{picture.step}"
            compares: list[str] = []
            if picture.earlier:
                earlier = str(Path(folder, "earlier.json"))
                show([step, *picture.earlier, "-o", earlier])
                compares = ["--compare", earlier]
            show([step, *picture.options, *compares, "-o", str(page)])
            address = page.as_uri() + picture.address
            for ending, scheme in THEMES.items():
                take(browser, address, IMAGES / f"{name}{ending}.png", scheme, picture.size)
    return 0


def take(browser: str, address: str, picture: Path, scheme: int, size: tuple[int, int]) -> None:
    """Have a browser draw a page, and save it as a picture."""
    width, height = size
    command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"]
    command += [f"--window-size={width},{height}", f"--screenshot={picture}"]
    command.append(f"--force-device-scale-factor={_SCALE}")
    command.append(f"--blink-settings=preferredColorScheme={scheme}")
    command += [f"--virtual-time-budget={_MILLISECONDS_TO_DRAW}", address]
    subprocess.run(command, check=True, capture_output=True)
