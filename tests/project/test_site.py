"""The site of docs/: all pages are in it, and its reference has every public name once.

`./check docs` builds it; these tests need none of the packages that do.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any  # Any: YAML, and whatever has a public name

import pytest
import yaml

import graphdist as gd
import graphdist.compat.v1

ROOT = Path(__file__).parents[2]
PUBLIC = (gd, gd.aot, gd.cluster, gd.data, gd.experimental, gd.metrics, gd.train, gd.viz)
SHOWN = re.compile(r"^::: (?P<path>\S+)(?P<options>(?:\n    .*)*)", re.MULTILINE)
ON_THEIR_OWN_PAGE = "docs/errors.md"  # the classes of errors


def hook(name: str) -> ModuleType:
    """Import a file of docs/site, as mkdocs does."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages_of_the_site() -> set[str]:
    """Return the pages that the navigation names, by their paths in the site."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def leaves(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(inner)

    return set(leaves(config["nav"]))


def test_every_page_is_in_the_navigation(pages_of_the_site: set[str]) -> None:
    docs = ROOT / "docs"
    on_disk = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    outside = {path for path in hook("links").beside(ROOT) if path.endswith(".md")}
    assert pages_of_the_site == on_disk | outside


def test_nothing_is_fetched_by_a_reader() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert "extra_javascript" not in config
    for sheet in config["extra_css"]:
        style = (ROOT / "docs" / sheet).read_text(encoding="utf-8")
        assert "url(" not in style
        assert "@import" not in style
    # The theme draws these with a program that it loads from a network.
    pages = sorted((ROOT / "docs").rglob("*.md"))
    assert [path for path in pages if "```mermaid" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("ir.md", "../CONTRIBUTING.md#add-a-pass", "CONTRIBUTING.md#add-a-pass"),
        ("tutorials/a.md", "../../examples/b.py", "../examples/b.py"),
        ("tutorials/a.md", "../ir.md", "../ir.md"),
        ("tutorials/a.md", "b.md", "b.md"),
        ("CONTRIBUTING.md", "docs/ir.md#grammar", "ir.md#grammar"),
        ("CONTRIBUTING.md", "ARCHITECTURE.md", "ARCHITECTURE.md"),
        ("ir.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("ir.md", "../pyproject.toml", "../pyproject.toml"),  # is refused when the site is built
    ],
)
def test_links_are_those_of_the_site(page: str, link: str, expected: str) -> None:
    outside = ["ARCHITECTURE.md", "CONTRIBUTING.md", "examples/b.py"]
    assert hook("links").rewrite(f"[a]({link})", page, outside) == f"[a]({expected})"


def test_links_in_code_stay() -> None:
    text = "`[a](../CONTRIBUTING.md)`\n\n```\n[a](../CONTRIBUTING.md)\n```"
    assert hook("links").rewrite(text, "ir.md", ["CONTRIBUTING.md"]) == text


@pytest.mark.needs("griffe")
def test_examples_in_docstrings_become_code() -> None:
    fenced = hook("docstrings").fenced
    assert fenced("Add.\n\n>>> f()\n[1]\n>>> g()") == "Add.\n\n```pycon\n>>> f()\n[1]\n>>> g()\n```"
    assert fenced("Add.\n\n* an item") == "Add.\n\n* an item"


def shown() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the pages of the reference show, as dotted paths with their options."""
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for match in SHOWN.finditer(page.read_text(encoding="utf-8")):
            yield match["path"], (yaml.safe_load(match["options"]) or {}).get("options", {})


def documented() -> Iterator[str]:
    """Yield the paths of all objects that are shown; of a module the members that are named."""
    for path, options in shown():
        yield from [f"{path}.{name}" for name in options.get("members", [])] or [path]


def identity(module: ModuleType, name: str) -> int | str:
    """Return what tells a public name from others: classes and functions may have several."""
    value = getattr(module, name)
    return id(value) if callable(value) else f"{module.__name__}.{name}"


def test_every_public_name_is_documented_once() -> None:
    paths = [path.rpartition(".") for path in documented()]
    counts = Counter(identity(importlib.import_module(module), name) for module, _, name in paths)
    errors = (ROOT / ON_THEIR_OWN_PAGE).read_text(encoding="utf-8")
    missing: list[str] = []
    repeated: list[str] = []
    for module in PUBLIC:
        for name in module.__all__:
            if inspect.ismodule(getattr(module, name)) or f"**`gd.{name}`**" in errors:
                continue
            count = counts[identity(module, name)]
            if count != 1:
                (repeated if count else missing).append(f"{module.__name__}.{name}")
    assert not missing, f"docs/reference does not show {missing}"
    assert not repeated, f"docs/reference shows these more than once: {repeated}"


def test_the_older_names_are_documented() -> None:
    module = graphdist.compat.v1
    own = {
        f"{module.__name__}.{name}"
        for name in module.__all__
        if getattr(getattr(module, name), "__module__", None) == module.__name__
    }
    assert own <= set(documented())


def test_inherited_members_are_there() -> None:
    found = dict(shown())
    for path, options in found.items():
        module, _, name = path.rpartition(".")
        for member in options.get("inherited_members", []):
            assert hasattr(getattr(importlib.import_module(module), name), member), (path, member)
    named = found["graphdist.Strategy"]["inherited_members"]
    assert {"run", "reduce", "scope", "experimental_distribute_dataset"} <= set(named)


QUESTIONS = {"How to use two GPUs": "docs/tutorials/one-machine.md"}
"""What people search for, and the page with a heading of these words, which the search finds."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_have_headings(question: str) -> None:
    text = (ROOT / QUESTIONS[question]).read_text(encoding="utf-8")
    section = re.search(rf"^#+ {question}\n\n(.+?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert 'gd.MirroredStrategy(["gpu:0", "gpu:1"])' in section[1]


def test_pictures_follow_the_colours_that_a_reader_chooses() -> None:
    for page in ("index.md", "viewing.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert "<picture>" in text
        shown = hook("links").by_scheme(text)
        assert "<picture>" not in shown
        assert shown.count("#only-light") == shown.count("#only-dark") == text.count("<picture>")
