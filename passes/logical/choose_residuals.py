"""Choose which values of the forward pass wait for the backward pass, and which it computes again.

The backward pass needs values of the forward pass. JAX decides when it differentiates: without
`jax.checkpoint` all of them wait, with it those that its policy names. This pass changes the choice
afterwards, as a plan says (`passes/plans.py`): the graph has both passes.

Before:  %y, %r = scan(%x0, %w) { %a = f(%x)  %b = g(%a)  ..  return %x1, %a }
         %z = scan(%d, %r, reverse=true) { %b_again = g(%r_i)  .. }
After:   %y, %s = scan(%x0, %w) { %a = f(%x)  %b = g(%a)  ..  return %x1, %b }         "b": device
         %z = scan(%d, %s, reverse=true) { .. }                                 "a": recompute

`residual_loops` and `written_out` find the forward values, in loops and outside of them. What a
plan keeps, and what cannot be computed again, is kept, as far as gradients need it. All others are
computed again from these. `residuals_of_loops` and `residuals_written_out` rebuild the graph so.

Left alone: passes of which the plan changes no value, and stacks that something else reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphdist.ir.errors import PlanError
from graphdist.ir.forward_values import ForwardValues
from graphdist.ir.graph import Graph
from graphdist.ir.residual_loops import residual_loops
from graphdist.ir.value_names import ValueName
from graphdist.ir.written_out import written_out
from graphdist.passes.logical import residuals_of_loops, residuals_written_out
from graphdist.passes.logical.residuals_of_loops import StackedValues
from graphdist.passes.logical.residuals_written_out import KeptValues
from graphdist.passes.plans import Keep
from graphdist.quoted import did_you_mean, unquoted

NAME = "choose_residuals"


@dataclass(frozen=True)
class ChooseResiduals:
    """The pass, with what a plan says of the values."""

    residuals: Mapping[ValueName, Keep]
    has_host: bool = True
    """Whether devices have a memory of their own, besides that of their host."""

    @property
    def __name__(self) -> str:
        return NAME

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with the residuals of the plan.

        Raises `PlanError` for a name that no value has, and for a value that cannot be had as the
        plan says.
        """
        self._require_names(graph)
        self._require_memory()
        graph = self._with_stacks(graph)
        kept = {
            passes.graph: KeptValues(passes, *chosen)
            for passes in written_out(graph)
            if (chosen := self._chosen(passes))
        }
        return residuals_written_out.with_kept(graph, kept, NAME)

    def all_residuals(self, graph: Graph) -> Mapping[ValueName, Keep]:
        """Return how the backward pass gets each value that it may need, also by default.

        Names of which the program keeps some values, and computes others again, are left out.
        """
        residuals: dict[ValueName, set[Keep]] = {}
        for passes in (*residual_loops(graph), *written_out(self._with_stacks(graph))):
            for number in filter(passes.can_be_repeated, passes.relevant):
                residuals.setdefault(passes.name_of(number), set())
            kept = self._kept(passes)
            for number in passes.stacks_for(kept):
                name = passes.name_of(number)
                is_host = self.residuals.get(name) is Keep.HOST
                residuals.setdefault(name, set()).add(Keep.HOST if is_host else Keep.DEVICE)
            for number in passes.repeated_for(kept):
                residuals[passes.name_of(number)].add(Keep.RECOMPUTE)
        # What no gradient needs, since others are kept, could be computed again.
        keeps = {name: found or {Keep.RECOMPUTE} for name, found in residuals.items()}
        return {name: next(iter(found)) for name, found in keeps.items() if len(found) == 1}

    def _with_stacks(self, graph: Graph) -> Graph:
        """Return the graph with the stacks of the plan; other values may be needed outside then."""
        chosen = {
            loops.backward.node: StackedValues(loops, *each)
            for loops in residual_loops(graph)
            if (each := self._chosen(loops))
        }
        residuals_of_loops.refuse_nested(chosen.values())
        return residuals_of_loops.with_stacks(graph, chosen, NAME) if chosen else graph

    def _chosen(self, passes: ForwardValues) -> tuple[tuple[int, ...], frozenset[int]] | None:
        """Return the numbers of the kept values and of those on the host; None if as before."""
        kept = passes.stacks_for(self._kept(passes))
        on_host = frozenset(
            number for number in kept if self.residuals.get(passes.name_of(number)) is Keep.HOST
        )
        is_as_before = set(kept) == set(passes.stacks_for(passes.stacked))
        return None if is_as_before and not on_host else (kept, on_host)

    def _kept(self, passes: ForwardValues) -> set[int]:
        """Return the numbers of the values that are not computed again, needed or not."""
        kept = set(passes.stacked)
        for name, keep in self.residuals.items():
            for number in passes.named.get(name, ()):
                if keep is not Keep.RECOMPUTE:
                    kept.add(number)
                elif passes.can_be_repeated(number):
                    kept.discard(number)
                else:
                    raise PlanError(
                        f"the plan says that {unquoted(str(name))} is computed again, which it "
                        "cannot be: the forward loop carries it from iteration to iteration, or it "
                        "is the result of an effect",
                        source=passes.source,
                    )
        return kept

    def _require_memory(self) -> None:
        for name, keep in self.residuals.items():
            if keep is Keep.HOST and not self.has_host:
                raise PlanError(
                    f"the plan keeps {unquoted(str(name))} in the memory of the host, and CPUs "
                    "have no other",
                    hint="make a plan for the platform on which the step runs",
                )

    def _require_names(self, graph: Graph) -> None:
        found = (*residual_loops(graph), *written_out(graph))
        known = {name for passes in found for name in passes.named}
        for name in self.residuals:
            if name not in known:
                raise PlanError(
                    f"the plan names {unquoted(str(name))}, and no value of the forward pass of "
                    f"{graph.name} has this name",
                    hint=did_you_mean(
                        str(name), map(str, known), "lower().plan lists the values that have names"
                    ),
                )
