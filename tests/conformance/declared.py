"""Cases that cannot or should not behave as TensorFlow's, by pattern, each with the reason.

`at` is the path of the part of the result that differs, for cases that try many things at once.
"""

from __future__ import annotations

from tests.conformance.declared_keras import KERAS
from tests.conformance.declared_workers import WORKERS
from tests.conformance.patterns import declare
from tests.conformance.reasons import (
    ALONE_OR_ZERO,
    AS_MIRRORED,
    BROKEN,
    EVERYWHERE,
    IN_AND_OUT,
    INTEGERS,
    NEVER_DIFFER,
    NO_SUCH_ARRAYS,
    OBJECTS,
    ON_ALL,
    ONE_OBJECT,
    TEXT,
    TRACED_ONCE,
)

SEVERAL = "{2,3,4,5,6,7,8}"
COPIES = "{mirrored,mwms_local}" + SEVERAL
MIRRORED_WRITES = "{AUTO,ON_WRITE}"
REPLICA_WRITES = "{assign,assign_add,assign_sub}_replica_tensor"
NUMBERS = "{assign,assign_add}_replica_py_*"

VALUES = (
    *declare(
        OBJECTS,
        "all_reduce/misc/captured_tensor_same_object|mirrored2*",
        "all_reduce/misc/captured_tensor_same_object_mean|mirrored2|function",
        "all_gather/misc/same_object_constant|mirrored2*",
    ),
    *declare(
        OBJECTS,
        f"run/returns_variable_assign*|{COPIES}*",
        f"run/returns_variable_assign|central{SEVERAL}",
    ),
    *declare(
        "a mirrored value that merge_call hands back is one value",
        f"merge_call/returns_extended_reduce_to|*{SEVERAL}",
    ),
    *declare(
        "an empty container and None have no leaves, as everywhere in JAX",
        "all_reduce/misc/list_with_none|*",
        f"all_reduce/misc/empty_list|*{SEVERAL}*",
        "extended/batch_reduce_to_empty|*",
    ),
    *declare(
        "an average loss divides by the examples that all replicas have, whatever each has",
        f"loss/compute_average_loss_partial_default|*{SEVERAL}",
    ),
    *declare(
        INTEGERS,
        "all_reduce/default_context_no_strategy|default",
        at="[1][1]",
    ),
    *declare(
        ALONE_OR_ZERO,
        f"reduce/MEAN/non_distributed/py_zero|*{SEVERAL}",
    ),
    *declare(
        "a Python number given to `run` stays one in the replica function",
        f"run/py_int_computed/tf_function_around|*{SEVERAL}",
    ),
    *declare(
        INTEGERS,
        "reduce/MEAN/axis=None/u8/*|*",
    ),
    *declare(
        "an override of 0 is one, as any other number is",
        "resolver/union_task_id_zero_override|*",
        at="[1]",
    ),
    *declare(
        "a failed step never poisons the next one",
        "gather/poisons_later_collectives|*",
        at="[{1,2}]",
    ),
)

REFUSED = (
    *declare(
        "a file for each worker is needed on all workers",
        "auto_shard/1file_2workers/{AUTO,FILE}|*",
        at="[1]",
    ),
    *declare(
        ALONE_OR_ZERO,
        f"reduce/SUM/non_distributed/{{np_zero,np_zero_vec}}|*{SEVERAL}",
    ),
    *declare(ON_ALL, "gather/python_list|mwms*"),
    *declare(
        "leaves of one element with unequal batch sizes are refused",
        f"dataset/zip_different_batch|*{SEVERAL}",
    ),
    *declare(
        "a variable does not mix with another strategy, read alone neither",
        "variable/read_other_strategy_replica|*",
    ),
    *declare(
        "options of one call leave no trace in the next",
        "input_options/per_replica_mode_leaks|*",
        at="[{2,3,4}]*",
    ),
    *declare("only a CrossDeviceOps is accepted", "construct/cross_device_ops_bad_type|*"),
    *declare("more components than replicas are refused", "run/prefetched_perreplica_*|*"),
    *declare("unequal reduce ops are refused", "all_reduce/misc/different_op_per_replica|*"),
    *declare("a device that is not there is refused", "construct/mirrored_missing_device|*"),
    *declare(
        "a reduce op that is none is a ValueError, whatever the axis",
        "reduce/op_is_none_axis0|*",
    ),
    *declare(
        "a PerReplica is never turned into an array of objects",
        "perreplica/numpy_len_iter|*",
        at="[6]",
    ),
    *declare(
        "values of a strategy cannot be made inside its replicas",
        "values_from_function/inside_replica_fn|*",
    ),
    *declare(
        "an array on one replica and a list on another is refused, as list and tuple are",
        f"run/returns_mixed_tensor_then_list|*{SEVERAL}",
    ),
    *declare(
        NEVER_DIFFER,
        f"variable/batch_scatter_desync_then_read|{COPIES}",
        f"variable/update_in_replica|*{SEVERAL}",
        f"checkpoint/AUTO/NONE/*|mirrored{SEVERAL}",
    ),
)

VARIABLES = (
    *declare(
        OBJECTS,
        f"variable_matrix/{MIRRORED_WRITES}/{{SUM,MEAN}}/f32|{{mirrored,mwms_local,central}}*",
        f"variable_matrix/{MIRRORED_WRITES}/SUM/i32|{{mirrored,central}}*",
        at=f".{{{NUMBERS},assign_add_replica_same_tensor_object}}",
    ),
    *declare(
        OBJECTS,
        f"variable_matrix_function/{MIRRORED_WRITES}/SUM/*|*{SEVERAL}",
        at=".assign_add_py",
    ),
    *declare(
        "a value that is the same on all replicas needs no aggregation",
        f"variable_matrix/{MIRRORED_WRITES}/NONE/*|central{SEVERAL}",
        at=f".{{{NUMBERS},assign_add_replica_same_tensor_object}}",
    ),
    *declare(
        "a value that is the same on all replicas needs no aggregation",
        f"variable_matrix_function/{MIRRORED_WRITES}/NONE/*|central{SEVERAL}",
        at=".assign_add_py",
    ),
    *declare(
        NEVER_DIFFER,
        f"variable_matrix/{MIRRORED_WRITES}/NONE/*|{COPIES}",
        at=f".{{{REPLICA_WRITES},run_return_of_assign}}",
    ),
    *declare(
        NEVER_DIFFER,
        f"variable_matrix/{MIRRORED_WRITES}/*/f32|{{mirrored,mwms_local,central}}{SEVERAL}",
        f"variable_matrix/{MIRRORED_WRITES}/{{NONE,SUM,ONLY_FIRST_REPLICA}}/i32|*{SEVERAL}",
        at=".{assign_cross_perreplica,extended_update_perreplica}",
    ),
    *declare(
        NEVER_DIFFER,
        f"variable_matrix_function/{MIRRORED_WRITES}/NONE/*|{COPIES}",
        at=".{assign,assign_add}",
    ),
    *declare(
        NEVER_DIFFER,
        f"variable_scatter/{MIRRORED_WRITES}/NONE|{COPIES}",
        at=".scatter_*/replica",
    ),
    *declare(
        "the value of one replica is never wrapped, and so can be assigned",
        "variable_matrix/ON_READ/{SUM,MEAN,ONLY_FIRST_REPLICA}/*|{mirrored,mwms_local}1",
        at=".assign_cross_perreplica",
    ),
    *declare(AS_MIRRORED, f"variable_matrix/NONE/*|central{SEVERAL}"),
    *declare(AS_MIRRORED, f"variable_matrix/*/MEAN/i32|central{SEVERAL}"),
    *declare(
        AS_MIRRORED,
        f"variable_matrix/ON_READ/*/f32|central{SEVERAL}",
        f"variable_matrix/ON_READ/{{NONE,SUM,ONLY_FIRST_REPLICA}}/i32|central{SEVERAL}",
        f"variable_matrix_function/ON_READ/*|central{SEVERAL}",
    ),
    *declare(AS_MIRRORED, f"variable_scatter/ON_READ/*|central{SEVERAL}"),
    *declare(
        AS_MIRRORED,
        f"variable_scatter/{MIRRORED_WRITES}/*|central{SEVERAL}",
        at=".scatter_*/replica*",
    ),
    *declare(
        AS_MIRRORED,
        f"variable_scatter/{MIRRORED_WRITES}/{{SUM,MEAN}}|central{SEVERAL}",
        at=".scatter_{min,max,update}/cross",
    ),
    *declare(
        "len() and float() of a variable look at its value",
        "variable/mirrored_is_lazy_iterable|*",
        at="[{0,3}]",
    ),
)

MORE = (
    *declare(
        EVERYWHERE,
        "control_flow/{cond,while}_with_all_reduce/tf_function|*",
        "all_reduce/misc/nested_tf_function|mirrored2*",
        "merge_call/{in_tf_function_nested,in_tf_cond_graph}|*",
    ),
    *declare(
        EVERYWHERE,
        f"gather/{{even,other}}/f32/axis=-1|{COPIES}",
        "gather/{even,other}/i32/axis=-1|mwms_local{2,3,4,5,6,7,8}",
        f"all_gather/even/axis=-1|{COPIES}*",
    ),
    *declare(
        EVERYWHERE,
        f"gather/dtype={{bool,u8,bf16,c64}}|{COPIES}",
        f"all_gather/misc/{{bool,bfloat16}}|{COPIES}",
        f"all_reduce/misc/{{mixed_dtype_float_int,two_int32}}|mirrored{SEVERAL}*",
        "all_reduce/misc/mixed_dtype_f32_f64|mirrored2|function",
        "all_reduce/misc/complex64|mirrored2*",
    ),
    *declare(
        EVERYWHERE,
        "all_reduce/misc/py_float|{mirrored2,mwms_local2,central2}",
        "all_reduce/misc/py_int|mirrored2",
    ),
    *declare(
        ON_ALL,
        "all_gather/misc/{scalar,py_list}|{one,default}",
        f"all_gather/misc/py_list|{{mirrored,central}}{SEVERAL}",
    ),
    *declare(
        "a PerReplica may be an argument of a function inside a replica function",
        "perreplica/tf_function_in_replica_ctx_arg|*",
    ),
)

SAME = (
    *declare(
        ON_ALL,
        "all_gather/misc/axis_too_big|{one,default}",
    ),
    *declare(
        ON_ALL,
        "all_reduce/misc/bool|{one,default}",
    ),
    *declare(
        ON_ALL,
        "reduce/*/non_distributed/{py_list,dict}_of_perreplica|{central,mwms_local}2",
        "reduce/*/axis=0/nest_list|*",
    ),
    *declare(
        IN_AND_OUT,
        "reduce/*/axis=[0, 1]/2x3|*",
    ),
    *declare(
        IN_AND_OUT,
        "run/returns_{mixed_none,mixed_dtype,mirrored_variable}/tf_function_around|*",
        "run/py_string_arg/tf_function_around|*",
    ),
    *declare(
        AS_MIRRORED,
        "variable/{int_mean_create,eager_numpy_on_read_sum,agg_invalid_string}|central*",
        "variable/{update_non_mirrored,trainable_with_on_read}|central*",
        "variable/perreplica_inside_assign_replica|central*",
        "local_results/sync_on_read_variable|central*",
    ),
    *declare(AS_MIRRORED, "extended/read_var|central*", at="[1]"),
    *declare(
        AS_MIRRORED,
        "input_options/from_function/{0,1,2,8}|central*",
        "dataset_from_function/{odd_number_of_batches,partial_last}|central*",
        at=".steps*",
    ),
    *declare(
        AS_MIRRORED,
        "input_options/from_function/{3,6,7}|central*",
        at=".steps*",
    ),
    *declare(
        BROKEN,
        "input_options/dataset/{0,1,2,4,8}|central*",
        "legacy/run_steps_on_iterator|central*",
        "legacy/make_dataset_iterator{,_experimental_run,_reinitialize}|default",
        "legacy/make_input_fn_iterator{,_callable}|default",
        "legacy/run_steps_on_iterator|default",
    ),
)

TRACED = (
    *declare(
        TRACED_ONCE,
        f"run/{{number_of_calls_eager,number_of_traces_function}}|*{SEVERAL}",
    ),
    *declare(
        TRACED_ONCE,
        f"run/python_side_effect_shared_list|*{SEVERAL}",
    ),
    *declare(
        "enumerate takes a distributed dataset, in a compiled loop too",
        "dataset/enumerate_in_tf_function|mirrored2",
    ),
    *declare(
        "a checkpoint is saved outside functions, between two steps",
        "checkpoint/misc/save_in_replica_ctx|*",
    ),
    *declare("an axis is a Python int: shapes are static", "all_gather/misc/axis_tensor|*"),
    *declare(
        "a compiled program raises for no value: see jax.experimental.checkify and jax_debug_nans",
        "control_flow/{assert_fails_on_one,nan_check}*|*",
    ),
    *declare(
        "the gradient through an integer is zero, not None",
        "all_reduce/misc/grad_through_int|*",
    ),
    *declare(
        "jax.grad differentiates with respect to what it is given: there is no tape",
        "variable/tape_on_read_replica|*",
    ),
)

NO_COUNTERPART = (
    *declare(NO_SUCH_ARRAYS, "run/returns_ragged|*", "all_reduce/misc/ragged|*"),
    *declare(NO_SUCH_ARRAYS, "dataset/ragged_batch|*"),
    *declare(NO_SUCH_ARRAYS, "run/returns_sparse|*", "dataset/sparse|*"),
    *declare(NO_SUCH_ARRAYS, "dataset/strings|*"),
    *declare("slices are gathered, not made dense", "gather/perreplica_of_indexed_slices|*"),
    *declare(ONE_OBJECT, "variable/handle_{cross,replica}|*"),
    *declare(
        "SavedModel is TensorFlow's: gd.aot keeps a step, a checkpoint what it works on",
        "checkpoint/misc/saved_model_*|*",
    ),
    *declare("tf.Module is TensorFlow's", "variable/tf_module_collects|*"),
    *declare(ONE_OBJECT, "variable/hash_eq|*"),
    *declare(
        "variable_sync_on_read_context is internal to TensorFlow",
        "variable/sync_on_read_context_*|*",
    ),
    *declare(ONE_OBJECT, "variable/names|*"),
    *declare(ONE_OBJECT, "variable/name_and_device|*", at="[0]"),
    *declare(TEXT, "variable/repr|*"),
    *declare(TEXT, "input_context/defaults|*", at="[3]"),
    *declare(TEXT, "value_context/defaults|*", at="[2]"),
    *declare(TEXT, "perreplica/repr|*"),
    *declare(
        "cross_device_ops are hints: XLA chooses the algorithm",
        "cross_device_ops/NcclAllReduce/{all_reduce,all_reduce_list}|*",
    ),
    *declare(
        "the devices of a replica are a tuple of names, and the default strategy has one too",
        "run/ctx_devices|{mirrored,mwms_local,central,default}*",
    ),
    *declare(
        "any iterable of batches is a dataset",
        "dataset/not_a_dataset|{mirrored,one,central,mwms_local}*",
        "dataset_from_function/returns_not_dataset|{mirrored,one,central,mwms_local}*",
    ),
    *declare(
        "the default strategy hands a dataset back, whose elements are NumPy's",
        "dataset/{device_of_elements,partial_batch_types}|default",
    ),
    *declare(
        "the older name works, as it did in 1.15",
        "context/legacy_attrs_v1|*",
        at=".experimental_run_v2",
    ),
    *declare("a device that is not there is refused", "construct/mirrored_remote_device|*"),
    *declare(
        "update calls its function once, for all copies",
        "variable/update_ctx_replica_ids|*",
    ),
    *declare(ONE_OBJECT, "context/value_container|*", at="[0]"),
    *declare(
        "run of the default strategy is a call of the function, nested ones too",
        "run/nested_run_same|default",
    ),
    *declare(
        "the replica number of the default strategy is the Python int 0",
        "run/replica_id_value_type|default",
        at="[0]",
    ),
)

DECLARED = VALUES + REFUSED + VARIABLES + MORE + SAME + TRACED + NO_COUNTERPART + WORKERS + KERAS
