"""The strategy outside every scope: one replica on JAX's default device, nothing distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any  # Any: users' functions and pytrees

import jax.numpy as jnp

from graphdist.runtime.devices import Devices
from graphdist.strategies.base import Strategy


class DefaultStrategy(Strategy):
    """Runs a program as if there were no strategy."""

    is_default = True

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call `fn(*args, **kwargs)`.

        >>> import graphdist as gd
        >>> gd.get_strategy().run(lambda x: x + 1, args=(2,))
        3
        """
        self._check_run(fn, args, kwargs)
        return fn(*args, **(kwargs or {}))


@cache
def default_strategy() -> DefaultStrategy:
    """Return the one default strategy of the process."""
    (device,) = jnp.zeros(()).devices()
    return DefaultStrategy(Devices((device,)))
