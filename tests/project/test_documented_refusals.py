"""Each statement of three pages that something is refused, raised or warned of has tests.

`SHOWN_BY` has the statements of each page, and the tests that show them. A statement is a sentence
or the row of a table; words of it that no other one has stand for it. A test is a function, or one
of its cases, `[case]`; the functions of `tests/errors/cases/` are cases of `test_message`. Each
statement that says that something is refused must be among them, or in `OF_OTHERS` with a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PART = re.compile(r"\n\s*\n|\n(?=\||\* |#)")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")
REFUSES = re.compile(r"refus|\brais(?:e|ed|es)\b|\bwarn|Warning\b|\bcannot\b", re.IGNORECASE)


def _of(file: str, names: str) -> list[str]:
    """Return the tests of a file with these names, which spaces separate."""
    return [f"tests/{file}.py::{name}" for name in names.split()]


def _cases(file: str, name: str, cases: str) -> list[str]:
    return [f"tests/{file}.py::{name}[{case}]" for case in cases.split()]


def _loops(cases: str) -> list[str]:
    return _cases("program/test_refused_loops", "test_what_cannot_be_a_loop_is_refused", cases)


def _one_by_one(cases: str) -> list[str]:
    name = "test_what_runs_element_by_element_is_right_and_told_once"
    return _cases("program/test_element_by_element", name, cases)


COMBINED, MODELS = "keras/test_combined_state", "keras/test_models"
COORDINATOR, UPDATES = "parameter_server/test_coordinator", "parameter_server/test_lost_updates"
DATASETS, ELEMENTS = "errors/cases/datasets", "errors/cases/input"
WRITES, SILENCE = "passes/test_lost_writes", "parameter_server/test_silence"

INPUT = {
    "`gd.ReplicaWarning` says so, once for each line that takes a MEAN without an axis": _of(
        "numerics/test_unequal_rows",
        "test_each_line_with_a_mean_over_unequal_replicas_is_warned_of_once "
        "test_a_warning_says_that_a_replica_has_no_rows_and_what_to_do "
        "test_means_of_what_is_no_mean_of_rows_are_not_warned_of",
    ),
    "`run` warns if an array has as many rows as the batches of a dataset": _of(
        "strategies/test_replica_warnings",
        "test_a_global_batch_given_whole_to_every_replica "
        "test_what_is_no_global_batch_is_not_warned_of",
    ),
    "All elements of a dataset have one structure, and of each leaf one dtype and inner shape": _of(
        ELEMENTS,
        "element_of_another_structure element_of_another_dtype element_of_another_inner_shape",
    ),
    "Other elements are refused, and the error names the leaf": _of(DATASETS, "batch_sizes_differ"),
    "which raises `gd.OutOfRangeError` (an `IndexError`) past the end": [
        *_of("data/test_distributed_dataset", "test_the_end"),
        *_of(ELEMENTS, "get_next_past_the_end"),
    ],
    "`next(iterator)` in a replica function is refused": _of(
        ELEMENTS, "next_in_a_replica_function"
    ),
    "so it is in a loop of JAX, such as `jax.lax.scan`": _of(DATASETS, "iterator_in_a_loop_of_jax"),
    "A distributed dataset has no `map`, `batch` or `shuffle`": [
        *_of("data/test_distributed_dataset", "test_a_distributed_dataset_is_no_collection"),
        *_of(ELEMENTS, "dataset_mapped_after_distribution"),
    ],
    "with one structure, shapes and dtypes from step to step": _cases(
        "data/test_dataset_reduction",
        "test_states_that_change_their_kind",
        "structure shape dtype",
    ),
    "needs `pip install 'graphdist[loops]'`": _of(
        "program/test_looping_functions", "test_without_the_extra_reduce_is_named"
    ),
    "refused by name, and undone: lists, ": _loops(
        "appends appends_to_a_global appends_in_a_function_beside"
    ),
    "lists, dicts, sets, attributes": _loops(
        "fills adds_to_an_attribute counts_in_a_method adds hides keeps makes"
    ),
    "variables and globals that a function beside it sets": _loops("binds calls"),
    "NumPy arrays changed in place": _loops("counts_in_place"),
    "caches in dicts": _loops("fills_a_cache"),
    "a value of the trace in it is refused by the next trace": _of(
        "program/test_refused_loops",
        "test_a_value_of_the_trace_that_python_caches_is_refused_by_the_next_trace",
    ),
    "A random generator of NumPy or Python that the body draws from": _loops(
        "draws draws_as_before draws_in_python draws_from_numpy draws_from_random"
    ),
    "`nnx.Rngs`, and modules of nnx that the body updates are refused": _loops(
        "draws_keys updates_a_module"
    ),
    "so is a Python iterator that it reads": _loops("numbers_steps takes_in_turn"),
    "`return` inside a loop is refused": _loops("returns"),
    "functions defined in it may return": _of(
        "program/test_what_loops_read", "test_functions_defined_in_a_loop_return"
    ),
    "but not early beside a `break` or `continue` of their own": _loops(
        "returns_in_a_loop_of_its_own"
    ),
    "What is converted is the source, so it has to be there": [
        *_of("program/test_refused_loops", "test_code_without_source_is_refused"),
        *_of("program/test_element_by_element", "test_a_lambda_is_not_converted"),
        *_one_by_one("through_a_generator through_a_partial"),
    ],
    "If the body cannot be traced, such as one that collects results in a list": _one_by_one(
        "a_list_of_losses"
    ),
    "These are comprehensions, `next` in other places, `zip` with a list, `break`": [
        *_one_by_one("by_comprehension two_at_once with_a_list with_break"),
        *_of("multi_worker/test_training", "test_methods_of_the_strategy"),
    ],
    "`gd.ElementByElementWarning` says so once, with the line and why": _one_by_one(
        "by_comprehension two_at_once with_a_list with_break through_what_cannot_be_converted"
    ),
    "A generator is one that can be iterated once": _of(DATASETS, "dataset_used_up"),
    "An element whose inner shape varies needs a dataset that declares it": [
        *_of(ELEMENTS, "element_of_another_inner_shape"),
        *_of("data/test_distributed_dataset", "test_inner_shapes_may_vary_where_that_is_declared"),
    ],
    "the `next` that would have returned the element raises the error, with its own traceback": _of(
        "data/test_failures", "test_distributed test_the_traceback_leads_to_the_function"
    ),
    "continues with the next element, if the source does; a generator has no more": _of(
        "data/test_failures", "test_the_next_element_follows test_a_generator_has_no_more"
    ),
    "Of several workers all leave the step out": _of(
        "data/test_failures", "test_a_step_fails_on_all_workers"
    ),
    "| leaves of one element with different batch sizes are split each for itself | refused": _of(
        DATASETS, "batch_sizes_differ"
    ),
    "| strings, ragged and sparse tensors | refused": _of(
        DATASETS, "batch_of_strings batch_of_ragged_rows batch_of_sparse_rows"
    ),
    "| fewer files than workers: an error on some, no input on others | refused on all": [
        *_of("data/test_autosharding", "test_by_file"),
        *_of(ELEMENTS, "fewer_files_than_workers"),
    ],
}

KERAS = {
    "On another backend a model that is made in a scope trains on one device": _of(
        "keras/test_switch",
        "test_another_backend_of_keras test_keras_that_is_imported_inside_a_scope",
    ),
    "A model that was compiled outside is refused inside a scope": _of(
        "keras/test_switch", "test_a_model_compiled_outside_is_told_where_it_is_trained"
    ),
    "A `fit` after it has changed without compiling again is refused": [
        *_of("errors/cases/keras_models", "keras_model_with_other_trainable_weights"),
        *_cases(
            "keras/test_steps_per_execution",
            "test_other_trainable_weights_without_compiling_again_are_told",
            "between during",
        ),
    ],
    "the steps before the failure are run, then the error is raised": _of(
        "keras/test_steps_per_execution", "test_batches_before_a_failure_are_trained_on"
    ),
    "what does not add up, such as a maximum, is refused": _of(
        COMBINED,
        "test_a_metric_that_does_not_add_up_is_refused "
        "test_a_metric_that_does_not_add_up_is_refused_in_a_loop_too",
    ),
    "a step in which a layer assigns state and says nothing is refused": _of(
        COMBINED, "test_a_weight_that_says_nothing_is_refused"
    ),
    "passes its gradients to `self.optimizer.stateless_apply`, as Keras documents": _of(
        MODELS, "test_a_custom_step_that_sums_no_gradients_is_refused"
    ),
    "so is a `train_step(self, data)` written for another backend": _of(
        "errors/cases/keras_models", "keras_train_step_of_another_backend"
    ),
    "`fit` warns and names layer and attribute": _of(
        MODELS,
        "test_a_layer_with_state_in_python_is_told "
        "test_a_layer_that_keeps_values_in_a_list_is_told",
    ),
    "your own loop does not": _of(
        MODELS, "test_a_loop_of_ones_own_tells_nothing_of_state_in_python"
    ),
    "On more than one replica it is refused": _of(MODELS, "test_a_state_for_each_row_is_refused"),
    "A Keras variable belongs to the first strategy that uses it": _of(
        "keras/test_own_loop", "test_a_variable_has_one_strategy"
    ),
    "A variable cannot be assigned inside `keras.remat`": [
        *_of("keras/test_own_loop", "test_a_variable_is_not_assigned_inside_remat"),
        *_cases(
            "tracing/test_jaxpr_to_graph",
            "test_what_cannot_mean_the_same_as_a_graph_is_refused_at_its_line",
            "assigned_in_a_checkpoint",
        ),
    ],
    "Another value is refused": _of(COMBINED, "test_a_sum_that_is_not_seen_to_be_one_is_refused"),
    "in `fit` and `evaluate` a step that assigns it is refused": _of(
        COMBINED,
        "test_a_weight_that_says_nothing_is_refused "
        "test_a_weight_that_says_nothing_is_refused_in_evaluate_too",
    ),
    "but for a count of steps, `assign_add(1)`": _of(COMBINED, "test_steps_are_counted_once"),
    "values must be equal on all replicas": _of(
        COMBINED,
        "test_sums_and_equal_values_in_a_loop test_values_that_differ_in_a_loop_are_refused",
    ),
    "| a weight is assigned values that differ | is refused": _of(
        "keras/test_own_loop", "test_parameters_that_would_differ_are_refused"
    ),
    "`fit` is synchronous, and is refused for a model on a": _of(
        "keras/test_parameter_servers", "test_fit_is_refused"
    ),
    "One that is not built is refused when the function is scheduled": _cases(
        "keras/test_parameter_servers", "test_what_is_not_built_is_refused", "layer optimizer"
    ),
    "Errors of ours that are raised in a layer are marked": _of(
        COMBINED, "test_a_weight_that_says_nothing_is_refused"
    ),
}

ASYNCHRONOUS = {
    "a function that refers to one is refused": _of(
        "parameter_server/test_coordinator",
        "test_a_function_does_not_refer_to_a_value_of_each_worker",
    ),
    "It needs Ray": _of(
        "parameter_server/test_ray_cluster", "test_without_ray_the_error_names_the_extra"
    ),
    "What could not be cut, it names under `cut_updates`": _of(
        "parameter_server/test_training", "test_a_step_says_what_could_not_be_cut"
    ),
    "cannot be written to a file by `gd.aot.save`": _of(
        "parameter_server/test_training", "test_a_step_is_not_saved"
    ),
    "| in a loop or a matrix product, by a gradient inside a branch": _cases(
        WRITES,
        "test_an_update_that_loses_writes_is_found_with_its_line",
        "loop_over_data local_steps multiplied gradient_in_a_branch rows_replaced",
    ),
    "with more than one worker such a step is refused when it first runs": _of(
        UPDATES,
        "test_an_update_in_a_loop_is_refused_where_two_workers_would_lose_writes",
    ),
    "`gd.ParameterServerStrategy(allow_lost_updates=True)` allows it": _of(
        UPDATES, "test_two_workers_make_it_where_losses_are_allowed"
    ),
    "such as `optax.MultiSteps`": _of(WRITES, "test_gradients_added_up_by_optax_are_lost"),
    "in every tenth step": _cases(
        WRITES,
        "test_a_choice_by_a_count_that_the_worker_has_read",
        "every_second_step",
    ),
    "A rate that depends on the count is not refused": _cases(
        WRITES,
        "test_a_choice_by_a_count_that_the_worker_has_read",
        "rate_by_steps",
    ),
    "With one worker nothing is lost, and nothing is refused": _of(
        UPDATES, "test_one_worker_makes_it"
    ),
    "a function cannot make any": _of(COORDINATOR, "test_variables_are_not_made_by_workers"),
    "a worker whose dataset ends raises `gd.OutOfRangeError`": _of(
        COORDINATOR, "test_a_worker_says_when_its_dataset_ends"
    ),
    "The first error of a function is raised by the next `join`, `done` or `schedule`, once": [
        *_cases(
            COORDINATOR,
            "test_the_next_that_asks_raises_the_error_once",
            "join done schedule",
        ),
        *_of(COORDINATOR, "test_the_error_of_a_function_is_raised_once"),
    ],
    "whose `fetch` raises `gd.ClosureCancelledError`; what ran before stays done": _of(
        COORDINATOR, "test_an_error_cancels_what_waits_and_leaves_what_ran"
    ),
    "`join` and reads raise `gd.ServerLostError` with the names of its variables": _of(
        "parameter_server/test_failures", "test_a_killed_server_is_named_with_its_variables"
    ),
    "functions that wait are cancelled, `join` raises `gd.WorkerError`": _of(
        SILENCE, "test_workers_that_never_start_end_what_waits"
    ),
    "from then on servers refuse what it sends for its function": _of(
        SILENCE,
        "test_the_function_of_a_stopped_worker_is_given_to_another "
        "test_a_lost_worker_cannot_write_for_a_function_that_another_runs",
    ),
    "raise `gd.WorkerTimeoutError`, a `TimeoutError`, after so many seconds": _of(
        "parameter_server/test_time_limits",
        "test_join_says_what_runs_where_and_can_be_called_again "
        "test_a_result_that_does_not_come_says_where_its_function_is",
    ),
    "graphdist warns of a cluster that asks for no token": _of(
        "parameter_server/test_ray_cluster", "test_a_cluster_without_authentication_is_warned_of"
    ),
    "A worker that cannot import a module raises a `ModuleNotFoundError`": _of(
        "parameter_server/test_modules_and_prints", "test_a_module_that_workers_lack_is_named"
    ),
    "What uses its variables or workers afterwards": _of(
        "parameter_server/test_ray_cluster",
        "test_what_was_shut_down_is_refused_and_starts_no_cluster",
    ),
    "Random keys are not stored on servers": _of(COORDINATOR, "test_values_that_no_server_takes"),
    "Keras's `fit` is synchronous, and refused": _of(
        "keras/test_parameter_servers", "test_fit_is_refused"
    ),
}

SHOWN_BY = {
    "docs/input.md": INPUT,
    "docs/keras.md": KERAS,
    "docs/asynchronous-training.md": ASYNCHRONOUS,
}

OF_OTHERS = {
    "docs/input.md": {
        "| `CentralStorageStrategy` drops an incomplete step and refuses options": (
            "tf.distribute does"
        ),
    },
    "docs/keras.md": {
        "| `test_optimizer_in_cross_replica_context_raises_error` |": "a test's name",
    },
    "docs/asynchronous-training.md": {
        "A process that is stopped, or whose machine cannot be reached": "a fault, not a refusal",
    },
}
"""What others refuse, and words that say something else, with the reason."""


def statements(text: str) -> Iterator[str]:
    """Yield each sentence and each row of a table of a page, without its code and headings."""
    for part in PART.split(CODE.sub("", text)):
        words = " ".join(part.removeprefix("* ").split())
        if not words.startswith("#"):
            yield from [words] if words.startswith("|") else SENTENCE.split(words)


def without_tests(text: str, known: Sequence[str]) -> Iterator[str]:
    """Yield the statements of a page that refuse something and have none of the known words."""
    for statement in statements(text):
        if REFUSES.search(statement) and not any(words in statement for words in known):
            yield statement


def of_no_statement(text: str, known: Sequence[str]) -> Iterator[str]:
    """Yield the words that do not stand for one statement of a page, and for how many."""
    found = list(statements(text))
    for words in known:
        count = sum(words in statement for statement in found)
        if count != 1:
            yield f"{words!r} is in {count} statements"


@cache
def names_in(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the functions of a file, and what may name a case in it: functions and strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return functions, functions.union(value for value in constants if isinstance(value, str))


def is_there(test: str, root: Path) -> bool:
    """Return whether a test is in its file, with the case of it that is named."""
    path, _, name = test.partition("::")
    name, _, case = name.rstrip("]").partition("[")
    if not (root / path).is_file():
        return False
    functions, cases = names_in(root / path)
    return name in functions and (not case or case in cases)


@pytest.mark.parametrize("page", SHOWN_BY)
def test_each_statement_is_on_its_page_and_has_its_tests(page: str, root: Path) -> None:
    text = (root / page).read_text(encoding="utf-8")
    found = list(of_no_statement(text, [*SHOWN_BY[page], *OF_OTHERS[page]]))
    assert not found, f"give SHOWN_BY words that one statement of {page} has:\n" + "\n".join(found)
    tests = [test for tests in SHOWN_BY[page].values() for test in tests]
    gone = [test for test in tests if not is_there(test, root)]
    assert not gone, "SHOWN_BY names tests that are not there:\n" + "\n".join(gone)


@pytest.mark.parametrize("page", SHOWN_BY)
def test_each_statement_that_refuses_has_tests(page: str, root: Path) -> None:
    text = (root / page).read_text(encoding="utf-8")
    found = list(without_tests(text, [*SHOWN_BY[page], *OF_OTHERS[page]]))
    assert not found, (
        f"write a test that shows what {page} says, and enter both in SHOWN_BY:\n"
        + "\n".join(found)
    )


PAGE = """# What is refused

Lists are refused: pass
a tuple. `run` warns of arrays. All is well.

* What cannot be sent raises an error. Nothing else.
* Tuples are not.

| a | b |
| --- | --- |
| text | refused |

```python
raise ValueError
```
"""


def test_a_statement_without_tests_is_found() -> None:
    assert list(without_tests(PAGE, ["warns of arrays"])) == [
        "Lists are refused: pass a tuple.",
        "What cannot be sent raises an error.",
        "| text | refused |",
    ]


def test_words_of_no_statement_and_of_two_are_found() -> None:
    assert list(of_no_statement(PAGE, ["pass a tuple", "numbers", "refused"])) == [
        "'numbers' is in 0 statements",
        "'refused' is in 2 statements",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("project/test_documented_refusals.py::test_a_test_is_there_or_not", True),
        ("project/test_documented_refusals.py::test_a_test_is_there_or_not[a case]", True),
        ("project/test_documented_refusals.py::test_a_test_is_there_or_not[another]", False),
        ("project/test_documented_refusals.py::SHOWN_BY", False),
        ("project/test_nothing.py::test_a_test_is_there_or_not", False),
    ],
    ids=["a test", "a case", "no case", "no test", "no file"],
)
def test_a_test_is_there_or_not(name: str, expected: bool, root: Path) -> None:
    assert is_there(f"tests/{name}", root) is expected
