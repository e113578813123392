"""The methods of TF1."""

from __future__ import annotations

import warnings
from typing import Any

import graphdist as gd
from tests.errors.programs import pair
from tests.errors.refusal import Refused


def _ignoring_warnings() -> Any:
    return warnings.catch_warnings(action="ignore")


def experimental_run_with_a_list(refused: Refused) -> None:
    with _ignoring_warnings(), refused(TypeError):
        pair().experimental_run(lambda x: x, [1, 2])


def input_iterator_with_a_replica_each(refused: Refused) -> None:
    mode = gd.InputReplicationMode.PER_REPLICA
    with _ignoring_warnings(), refused(ValueError):
        pair().make_input_fn_iterator(lambda context: [1.0], mode)


def input_function_returns_a_number(refused: Refused) -> None:
    with _ignoring_warnings(), refused(ValueError):
        pair().make_input_fn_iterator(lambda context: 5)


def input_iterator_past_the_end(refused: Refused) -> None:
    with _ignoring_warnings():
        iterator = pair().make_input_fn_iterator(lambda context: [1.0, 2.0, 3.0])
        assert iterator.get_next().values == (1.0, 2.0)
        with refused(IndexError):
            iterator.get_next()
        iterator.initialize()
        assert iterator.get_next().values == (1.0, 2.0)


def configured_with_a_cluster(refused: Refused) -> None:
    with refused(ValueError):
        pair().configure(cluster_spec={"worker": ["localhost:1"]})


def loop_over_an_iterator_inside_a_function(refused: Refused) -> None:
    strategy = pair()
    with _ignoring_warnings():
        iterator = strategy.make_input_fn_iterator(lambda context: [1.0, 2.0])

    @gd.function
    def step() -> Any:
        run = strategy.extended.experimental_run_steps_on_iterator
        return run(lambda context, x: None, iterator).last_step_outputs

    with refused(RuntimeError):
        step()
