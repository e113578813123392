"""Links between the site of docs/ and the files beside it: a hook of mkdocs.

A page links to a file by its place in the repository, so that code hosts follow the link. The site
has the pages of `docs/` at its root, and beside them the files of `BESIDE`. So every link between
the two is rewritten; a link to any other file outside `docs/` stays, and mkdocs refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what builds the site alone needs mkdocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "examples/*.py")
"""Files outside `docs/` that are part of the site."""

_CODE_OR_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]*`|(?P<start>\]\()(?P<target>[^)#\s:]+)(?P<end>[)#])",
    re.MULTILINE | re.DOTALL,
)


def beside(root: Path) -> list[str]:
    """Return the files of the site outside `docs/`, by their paths in the repository."""
    found = (path for pattern in BESIDE for path in sorted(root.glob(pattern)))
    return [path.relative_to(root).as_posix() for path in found]


def rewrite(markdown: str, page: str, outside: list[str]) -> str:
    """Return the Markdown of a page with links as the site has them.

    `page` is the page's path in the site; the pages of `outside` have theirs in the repository.

    >>> rewrite("[how](../CONTRIBUTING.md#a)", "ir.md", ["CONTRIBUTING.md"])
    '[how](CONTRIBUTING.md#a)'
    >>> rewrite("[graphs](docs/ir.md)", "CONTRIBUTING.md", ["CONTRIBUTING.md"])
    '[graphs](ir.md)'
    """
    in_repository = page if page in outside else f"docs/{page}"

    def rewritten(match: re.Match[str]) -> str:
        if match["target"] is None:
            return match.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository), match["target"]))
        if not path.startswith("docs/") and path not in outside:
            return match.group()
        target = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(page) or ".")
        return f"{match['start']}{target}{match['end']}"

    return _CODE_OR_LINK.sub(rewritten, markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files beside `docs/` to the site."""
    from mkdocs.structure.files import File

    for path in beside(ROOT):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


_PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)" alt="(?P<alt>[^"]+)">\s*</picture>'
)


def by_scheme(markdown: str) -> str:
    """Return Markdown whose pictures follow the colours that a reader of the site chooses.

    A code host has no such choice: there `<picture>` follows the system.

    >>> light_and_dark = '<source srcset="a-dark.png"><img src="a.png" alt="A">'
    >>> by_scheme(f"<picture>{light_and_dark}</picture>")
    '![A](a.png#only-light) ![A](a-dark.png#only-dark)'
    """
    return _PICTURE.sub(
        r"![\g<alt>](\g<light>#only-light) ![\g<alt>](\g<dark>#only-dark)", markdown
    )


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    return rewrite(by_scheme(markdown), page.file.src_uri, beside(ROOT))
