"""The habits of a release: one version, a changelog that has it, decisions with dates."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any  # Any: TOML

import pytest
import yaml

import graphdist as gd
from graphdist.version import VERSION
from tests.readme_lines import oldest_jax

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\S+))?$", re.MULTILINE)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_version_has_one_place(project: dict[str, Any]) -> None:
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    dynamic = project["tool"]["setuptools"]["dynamic"]
    assert dynamic == {"version": {"attr": "graphdist.version.VERSION"}}
    assert gd.__version__ == VERSION
    # setuptools reads a literal without importing JAX.
    source = (ROOT / "graphdist" / "version.py").read_text(encoding="utf-8")
    assert f'\nVERSION = "{VERSION}"\n' in source


def test_the_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, *released = HEADING.finditer(text)
    assert unreleased["version"] == "Unreleased"
    assert unreleased["date"] is None
    assert released[0]["version"] == VERSION
    versions = [numbers(heading["version"]) for heading in released]
    dates = [datetime.date.fromisoformat(heading["date"]) for heading in released]
    assert versions == sorted(set(versions), reverse=True)
    assert dates == sorted(dates, reverse=True)


def test_a_citation_names_the_last_release(project: dict[str, Any]) -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    _, last, *_ = HEADING.finditer((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert (cited["version"], str(cited["date-released"])) == (last["version"], last["date"])
    assert cited["license"] == project["project"]["license"]
    assert cited["keywords"] == project["project"]["keywords"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()))
def test_the_forms_of_issues_are_complete(form: Path) -> None:
    fields = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= fields.keys()
    asked = [each for each in fields["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in asked}) == len(asked)
    assert all(each["attributes"]["label"] for each in asked)
    assert any(each.get("validations", {}).get("required") for each in asked)


def test_every_decision_has_a_date() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    decisions = re.findall(r"^\*\*.*", text, re.MULTILINE)
    assert len(decisions) > 20
    for decision in decisions:
        dated = re.match(r"\*\*.+?\*\* \((\d{4}-\d{2}-\d{2})\)\. ", decision)
        assert dated, decision
        datetime.date.fromisoformat(dated[1])


def test_the_oldest_jax_is_named_once(project: dict[str, Any]) -> None:
    oldest = oldest_jax()
    dependencies = project["project"]["dependencies"]
    bounds = [bound for bound in dependencies if bound.startswith("jax")]
    assert bounds == [f"jax>={oldest}", f"jaxlib>={oldest}"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", oldest)  # `==` then names one release


def test_the_oldest_python_is_the_lowest_classifier(project: dict[str, Any]) -> None:
    metadata = project["project"]
    minors = [
        numbers(classifier.rpartition(" ")[2])
        for classifier in metadata["classifiers"]
        if re.search(r":: 3\.\d+$", classifier)
    ]
    assert metadata["requires-python"] == ">=" + ".".join(map(str, min(minors)))
