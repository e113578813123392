"""The documents are true: their programs run, and their links lead somewhere.

Every ```python block of README.md and docs/ is run. The blocks of a page are one program, as if
they had been copied to a file `train.py` one after the other; a ```text block after one shows what
that one prints. `pytest --update-golden` rewrites what they show.

Run as a program, this file runs the pages named on its command line and prints the outputs of their
blocks as JSON: pages set the number of CPU devices, which a process can do once.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: a program's namespace; TOML

import jax
import pytest

ROOT = Path(__file__).parents[2]
SHOWN_WITH = "0.10."
"""The versions of JAX whose output pages show: others trace to other operations of JAX."""
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", *DOCS]
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)?(#(?P<anchor>[^)\s]+))?\)")
DEVICES = re.compile(r"set_logical_cpu_devices\((\d+)\)")
IMAGE = re.compile(r'\b(?:src|srcset)="(?P<target>[^"]+)"')
PROGRAM = "train.py"  # what the blocks of a page are a file of


def blocks_of(page: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of each block of code on a page."""
    for match in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        yield match["language"], match["text"]


def devices_of(page: str) -> int:
    """Return the number of devices for which a page asks, at least 2."""
    asked = [DEVICES.search(text) for language, text in blocks_of(page) if language == "python"]
    return max((int(found[1]) for found in asked if found), default=2)


def run_page(page: str) -> list[str]:
    """Run the Python blocks of a page and return what each prints."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs: list[str] = []
    program = ""
    for language, text in blocks_of(page):
        if language != "python":
            continue
        code = compile("\n" * program.count("\n") + text, PROGRAM, "exec")
        program += text
        # An error, a graph with sources: they show the user's line.
        linecache.cache[PROGRAM] = len(program), None, program.splitlines(True), PROGRAM
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        outputs.append(printed.getvalue())
    return outputs


def main(pages: list[str]) -> None:
    """Print what the blocks of each page print, or the traceback of one that fails."""
    results: dict[str, list[str] | str] = {}
    for page in pages:
        try:
            results[page] = run_page(page)
        except Exception:
            results[page] = traceback.format_exc()
    print(json.dumps(results))


@pytest.fixture(scope="module")
def outputs() -> dict[str, Any]:
    """Run the pages for each number of devices in a process, where warnings are errors."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    results: dict[str, Any] = {}
    for count in sorted(set(map(devices_of, PAGES))):
        pages = [page for page in PAGES if devices_of(page) == count]
        finished = subprocess.run(
            [sys.executable, "-W", "error", __file__, *pages],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert finished.returncode == 0, finished.stderr
        results |= json.loads(finished.stdout)
    return results


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_and_print_what_is_shown(
    page: str, outputs: dict[str, Any], update_golden: bool
) -> None:
    given = outputs[page]
    assert isinstance(given, list), given
    if update_golden:
        rewrite_shown(page, given)
        return
    number = -1
    for language, text in blocks_of(page):
        if language == "python":
            number += 1
        elif language == "text" and jax.__version__.startswith(SHOWN_WITH):
            assert number >= 0, "a text block before the first python block"
            assert text.rstrip().splitlines() == given[number].rstrip().splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_devices_are_set_where_graphdist_is_imported(page: str) -> None:
    """Pages run in one process, in which another page has set them; a reader runs one."""
    blocks = [text for language, text in blocks_of(page) if language == "python"]
    setting = [text for text in blocks if "set_logical_cpu_devices(" in text]
    importing = [text for text in blocks if "import graphdist as gd" in text]
    assert not setting or setting[0] == importing[0]


def rewrite_shown(page: str, outputs: list[str]) -> None:
    """Write into each text block of a page what the Python block before it prints."""
    number = -1

    def replaced(match: re.Match[str]) -> str:
        nonlocal number
        number += match["language"] == "python"
        if match["language"] != "text":
            return match.group()
        return f"```text\n{outputs[number].rstrip()}\n```"

    path = ROOT / page
    path.write_text(BLOCK.sub(replaced, path.read_text(encoding="utf-8")), encoding="utf-8")


def test_generated_pages_are_fresh() -> None:
    from graphdist.tools.documents import command

    stale = command.stale(command.FOLDER)
    assert not stale, f"{', '.join(stale)}: run python -m graphdist.tools.documents"


def test_every_operation_is_described() -> None:
    from graphdist.ir.ops import OPS
    from graphdist.tools.documents import command

    assert command.descriptions().keys() == OPS.keys()


@pytest.mark.parametrize(
    "page", [*PAGES, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"], ids=str
)
def test_links_lead_somewhere(page: str) -> None:
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target, anchor = match["target"], match["anchor"]
        if target and "://" in target:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(path), f"{page} links to {target or ''}#{anchor}"
    for match in IMAGE.finditer(text):
        assert ((ROOT / page).parent / match["target"]).exists(), f"{page} shows {match['target']}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, lower case, with hyphens for spaces."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_line_that_the_readme_names_reduces() -> None:
    """The report in it is of one compilation, and lines of the example move."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"reduce_scatter, aot_transformer\.py:(\d+)", text)
    example = (ROOT / "examples" / "aot_transformer.py").read_text(encoding="utf-8").splitlines()
    assert "all_reduce(" in example[int(line) - 1]


if __name__ == "__main__":
    main(sys.argv[1:])
