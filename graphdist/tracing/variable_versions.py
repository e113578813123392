"""Checks that a variable that is read again in a recomputation has its first value.

`jax.checkpoint` runs its body again in the backward pass, with its reads of variables. Every write
of a variable makes a new version of it. A read is kept with its line and the version it saw. If a
line read several versions, in a Python loop or a function that is called again, JAX does not say
which of these reads is repeated. So a repeated read must see the only version that its line has
read: otherwise the checkpoint would change the program's results.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from graphdist.ir.graph import GraphVariable
from graphdist.ir.source import Frame, Source
from graphdist.tracing.trace_in_progress import TraceError


class Versions:
    """Counts the writes of each variable, and the versions that each line has read."""

    def __init__(self) -> None:
        """Start before any write."""
        self._written: Counter[str] = Counter()
        self._written_at: dict[str, Source] = {}
        self._seen: dict[tuple[str, tuple[Frame, ...]], set[int]] = defaultdict(set)
        self._pending: list[tuple[GraphVariable, Source, int]] = []

    def written(self, variable: GraphVariable, source: Source) -> None:
        """Note a write."""
        self._written[variable.name] += 1
        self._written_at[variable.name] = source

    def check_read(self, variable: GraphVariable, source: Source, is_replay: bool) -> None:
        """Note a read, or check a repeated one; raises `TraceError` if it sees another version."""
        version = self._written[variable.name]
        if not is_replay:
            # To resolve a source is slow, and most programs have no recomputation: resolve later.
            self._pending.append((variable, source, version))
            return
        for earlier, where, seen in self._pending:
            self._seen[earlier.name, where.frames].add(seen)
        self._pending.clear()
        if self._seen.get((variable.name, source.frames), {0}) != {version}:
            raise TraceError(
                f"variable {variable.name!r} is read inside jax.checkpoint and assigned before the "
                f"backward pass reads it again: the two reads would differ",
                source=source,
                other=self._written_at.get(variable.name),
                hint="read the variable before the checkpointed function and pass it the value",
            )
