"""Whether a replayed read of a variable means the same as the first one.

`jax.checkpoint` runs its body again in the backward pass, reads of variables included. Every write
of a variable starts a new version of it. A read is remembered by its line and the version it saw. A
line that was read at several versions, in a loop of Python's or a function that is called again,
replays one of them, and JAX does not say which. So a replay must see the one version that its line
ever saw: otherwise the program would mean something else with the checkpoint than without it.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from graphdist.ir.graph import GraphVariable
from graphdist.ir.source import Frame, Source
from graphdist.tracing.state import TraceError


class Versions:
    """Counts the writes of each variable, and what each reading line saw."""

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
        """Note a read, or check the replay of one; `TraceError` if it sees another version."""
        version = self._written[variable.name]
        if not is_replay:
            # Resolving a source is dear and most programs have no replay: keep it for later.
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
