"""Refuses the options of a command line that would have no effect.

An option without effect is a mistake of the user, who would believe that the output depends on the
option. A tool has a table of its modes and of the options that each mode uses. Any option that is
not in the table raises an error, so that a new option is never ignored silently.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Collection

from graphdist.errors import ArgumentError


def given_options(parser: ArgumentParser, options: Namespace) -> frozenset[str]:
    """Return the names of the options whose values are not their defaults."""
    values = vars(options).items()
    return frozenset(name for name, value in values if value != parser.get_default(name))


def refuse_unused(given: Collection[str], does: str, uses: Collection[str]) -> None:
    """Raise `ArgumentError` for a given option that the mode `does` does not use.

    >>> refuse_unused({"scale", "fit"}, "--scale", ["scale", "topology"])
    Traceback (most recent call last):
    ...
    graphdist.errors.ArgumentError: --scale has no use for --fit: leave one of them out
      <doctest graphdist.tools.given_options.refuse_unused[0]>:1, in <module>
        refuse_unused({"scale", "fit"}, "--scale", ["scale", "topology"])
    """
    for name in sorted(set(given).difference(uses)):
        raise ArgumentError(f"{does} has no use for {written(name)}: leave one of them out")


def require_with(given: Collection[str], name: str, needed: str) -> None:
    """Raise `ArgumentError` if the option `name` is given without the option `needed`.

    >>> require_with({"allow"}, "allow", "against")
    Traceback (most recent call last):
    ...
    graphdist.errors.ArgumentError: --allow goes with --against: give that too, or leave it out
      <doctest graphdist.tools.given_options.require_with[0]>:1, in <module>
        require_with({"allow"}, "allow", "against")
    """
    if name in given and needed not in given:
        raise ArgumentError(
            f"{written(name)} goes with {written(needed)}: give that too, or leave it out"
        )


def written(name: str) -> str:
    """Return an option as it is written in a command line, or an argument in words.

    >>> written("num_slices"), written("target")
    ('--num-slices', 'a target')
    """
    return "a target" if name == "target" else f"--{name.replace('_', '-')}"
