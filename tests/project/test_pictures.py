"""The picture of a step on its replicas is that of the program beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jax

from tests.project.test_notebook import SHOWN_WITH

ROOT = Path(__file__).parents[2]
DRAWS = """
import sys
from pathlib import Path
from graphdist.tools.pictures.replicas import drawn_step

sys.stdout.write(drawn_step(Path(sys.argv[1])))
"""


def test_the_picture_of_replicas_is_that_of_the_index() -> None:
    command = [sys.executable, "-c", DRAWS, str(ROOT / "docs" / "index.md")]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if jax.__version__ == SHOWN_WITH:
        kept = (ROOT / "docs" / "images" / "replicas.svg").read_text(encoding="utf-8")
        assert drawn == kept, "run python -m graphdist.tools.pictures replicas"
    texts = [element.text or "" for element in ElementTree.fromstring(drawn).iter() if element.text]
    for word in ("replica 0, cpu:0", "replica 1, cpu:1", "f32[3] mirrored", "f32[8,3] per_replica"):
        assert word in texts
    assert "all_reduce mean: 12 B between 2 replicas" in texts
    for page in ("index.md", "concepts.md"):
        assert "(images/replicas.svg)" in (ROOT / "docs" / page).read_text(encoding="utf-8")
