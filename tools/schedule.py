"""Show the collectives in loops of a compiled module, and what the schedule runs beside each.

    python -m graphdist.tools.schedule module.txt

The file has the text of an optimised module, such as `compiled.as_text("hlo")`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from graphdist.errors import ArgumentError
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.schedule import LoopCollective, loop_collectives
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.given_files import require_file


@console_tool("schedule")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the collectives of each loop."""
    parser = CommandParser(__doc__)
    parser.add_argument("module", type=Path, help="a file with the text of a compiled module")
    path = parser.parse_args(arguments).module
    require_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is no text: {error}") from error
    for loop, group in groupby(loop_collectives(CompiledModule(text)), key=lambda each: each.loop):
        found = list(group)
        exposed = sum(collective.is_exposed for collective in found)
        print(f"{loop}: {len(found)} collectives, nothing overlaps {exposed}")
        print(*map(_line, found), sep="\n")
    return 0


def _line(collective: LoopCollective) -> str:
    count = len(collective.beside)
    plural = "" if count == 1 else "s"
    beside = f"beside {count} instruction{plural}, {collective.beside_cycles:,} cycles"
    said = "exposed" if collective.is_exposed else beside
    return f"  {collective.kind}  {collective.name}  {collective.times} runs  {said}"


if __name__ == "__main__":
    sys.exit(main())
