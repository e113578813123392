"""Programs in a notebook, in the browser and on a terminal."""

from __future__ import annotations

import html
import pydoc
import sys
import types
import webbrowser
from pathlib import Path

import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.ir.printer import print_graph
from graphdist.program.stages import Lowered
from graphdist.tools import viz
from graphdist.viz.display import open_page
from tests.viz.graphs import chain, hostile


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that the browser is asked to open."""
    addresses: list[str] = []

    def open_address(address: str) -> bool:
        addresses.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_address)
    return addresses


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "chain.gd"
    path.write_text(print_graph(chain(60)))
    return str(path)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the output a terminal, and return what the pager is given."""
    paged: list[str] = []
    monkeypatch.setattr(viz, "_is_terminal", lambda: True)
    monkeypatch.setattr(pydoc, "pager", paged.append)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return paged


def stage() -> Lowered:
    @gd.function
    def step(x: object) -> object:
        return jnp.sin(x) * 2.0  # type: ignore[arg-type]

    return step.trace(jnp.ones(3)).lower()


def test_show_opens_the_page_in_a_browser(opened: list[str]) -> None:
    lowered = stage()
    lowered.show()
    (address,) = opened
    assert address.startswith("file:///")
    assert Path(address.removeprefix("file://")).read_text() == gd.viz.render(lowered, "html")


def test_show_prints_other_formats(capsys: pytest.CaptureFixture[str]) -> None:
    lowered = stage()
    lowered.show("text")
    assert capsys.readouterr().out == gd.viz.render(lowered, "text")


def test_show_goes_into_the_cell_of_a_notebook(
    monkeypatch: pytest.MonkeyPatch, opened: list[str]
) -> None:
    class ZMQInteractiveShell:
        pass

    displayed: list[str] = []
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    monkeypatch.setattr(ipython, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setattr(display, "HTML", str, raising=False)
    monkeypatch.setattr(display, "display", displayed.append, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    lowered = stage()
    lowered.show()
    assert displayed == [lowered._repr_html_()]
    assert opened == []


def test_a_cell_holds_the_page_in_a_frame_that_can_reach_nothing() -> None:
    cell = stage()._repr_html_()
    page = cell.partition('srcdoc="')[2].partition('"')[0]
    assert html.unescape(page).startswith("<!doctype html>")
    assert 'sandbox="allow-scripts"' in cell
    assert cell.count("<") == 2  # the frame and its end: the page is text


def test_where_no_browser_starts_the_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    path = tmp_path / "page.html"
    assert open_page("<p>", path) == path
    assert capsys.readouterr().err == f"no browser could be started; the page is in {path}\n"


@pytest.mark.parametrize("output", [[], ["-o", "page.html"]], ids=["temporary", "named"])
def test_open_writes_the_page_and_opens_it(
    saved: str,
    output: list[str],
    opened: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert viz.main([saved, "--open", *output]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.read_text().startswith("<!doctype html>")
    assert opened == [path.resolve().as_uri()]


def test_text_is_paged_and_coloured_on_a_terminal(
    saved: str, terminal: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert viz.main([saved]) == 0
    assert capsys.readouterr().out == ""
    (text,) = terminal
    assert "\033[36m%0\033[0m = scale(" in text
    assert "\033[1m\033[33mall_reduce\033[0m(" in text


def test_a_text_that_the_screen_holds_is_printed(
    saved: str,
    terminal: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LINES", "500")
    for columns in ("5", "1", "0", "-3", "many"):
        monkeypatch.setenv("COLUMNS", columns)
        assert viz.main([saved]) == 0
        assert "all_reduce" in capsys.readouterr().out
    assert terminal == []


def test_no_color_is_obeyed_on_a_terminal(
    saved: str, terminal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert viz.main([saved]) == 0
    assert terminal == [Path(saved).read_text() + "\n"]


@pytest.mark.parametrize("options", [[], ["--collectives"], ["--filter", "all"]])
def test_what_is_no_terminal_gets_neither_pager_nor_colour(
    saved: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert viz.main([saved, *options]) == 0
    assert "\033" not in capsys.readouterr().out


def test_a_file_gets_no_colour(saved: str, terminal: list[str], tmp_path: Path) -> None:
    assert viz.main([saved, "-o", str(tmp_path / "out.txt")]) == 0
    assert terminal == []
    assert "\033" not in (tmp_path / "out.txt").read_text()


def test_colours_are_the_only_escapes(
    tmp_path: Path, terminal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hostile.gd"
    path.write_text(print_graph(hostile()))
    assert viz.main([str(path)]) == 0
    coloured = terminal.pop()
    monkeypatch.setenv("NO_COLOR", "1")
    assert viz.main([str(path)]) == 0
    assert "\033" in coloured
    assert "\033" not in terminal.pop()
