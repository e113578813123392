"""The strategy outside every scope: one replica on JAX's default device, nothing distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Self  # Any: users' functions and pytrees

import jax
import jax.numpy as jnp

from graphdist.context import set_default_strategy
from graphdist.errors import ContextError
from graphdist.runtime.devices import Devices
from graphdist.strategies.base import Result, Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.workers_of_job import require_all_processes
from graphdist.tracing.axis_name import on_one_replica, run_by_default_strategy
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.copying import is_part_of_a_copy


class DefaultStrategy(Strategy):
    """Runs a program as if there were no strategy."""

    is_default = True
    makes_plain_variables = True

    def __init__(self) -> None:
        """Use JAX's default device; raises `ContextError` for a second default strategy."""
        if default_strategy.cache_info().currsize:
            raise _second_default_strategy()
        with jax.ensure_compile_time_eval():  # JAX may be tracing
            (device,) = jnp.zeros(()).devices()
        super().__init__(StrategyExtended(Devices((device,))))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if is_part_of_a_copy(memo):
            return self
        raise _second_default_strategy()

    def program_of(self, traced: Any, compiled: Callable[[Any], Any]) -> Any:
        """Return the compiled program; raises `ContextError` if JAX has several processes."""
        what = "a function outside of a strategy's scope"
        require_all_processes(what, 'call it inside gd.OneDeviceStrategy("cpu:0").scope()')
        return super().program_of(traced, compiled)

    def run(
        self,
        fn: Callable[..., Result],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Result:
        """Call `fn(*args, **kwargs)`.

        >>> import graphdist as gd
        >>> gd.get_strategy().run(lambda x: x + 1, args=(2,))
        3
        """
        self._check_run(fn, args, kwargs)
        call = partial(fn, *args, **(kwargs or {}))
        trace = current_trace()
        if trace is None:
            return on_one_replica(self.axis_name, call)
        return trace.bound(self.axis_name, 1, lambda: run_by_default_strategy(call))


@cache
def default_strategy() -> DefaultStrategy:
    """Return the one default strategy of the process."""
    return DefaultStrategy()


def _second_default_strategy() -> ContextError:
    return ContextError(
        "a process has 1 default strategy, and a second one would be made",
        source=here(),
        hint="get it by gd.get_strategy(), outside every scope",
    )


set_default_strategy(default_strategy)
