"""How strategies are made, entered and copied, and what `strategy.extended` is asked."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


def strategy_without_extended(refused: Refused) -> None:
    with refused(TypeError):
        gd.Strategy()


def local_steps_none(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], sync_every=0)


def local_steps_without_a_number(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], outer_optimizer=optax.sgd(0.7))


def local_steps_with_another_optimizer(refused: Refused) -> None:
    with refused(TypeError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], sync_every=50, outer_optimizer="sgd")


def local_steps_of_shared_updates(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], sync_every=50, shard_update=True)


def local_steps_of_random_keys(refused: Refused) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], sync_every=50)
    with strategy.scope():
        w, key = gd.Variable(jnp.ones(2)), gd.Variable(jax.random.key(0))

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            total = gd.get_replica_context().all_reduce("SUM", w[...] * x)
            w.assign(w[...] - total)
            number = total[0].astype(jnp.int32)
            key.assign(jax.random.fold_in(key[...], number))

        strategy.run(replica_fn, args=(x,))

    with refused(ValueError):
        step(per_replica(strategy, np.ones(2, np.float32)))


def default_strategy_made_again(refused: Refused) -> None:
    with refused(RuntimeError):
        type(gd.get_strategy())()


def default_strategy_copied(refused: Refused) -> None:
    with refused(RuntimeError):
        copy.deepcopy(gd.get_strategy())


def default_scope_inside_another(refused: Refused) -> None:
    default = gd.get_strategy()
    with pair().scope(), refused(RuntimeError), default.scope():
        pass


def scope_entered_after_it_was_left(refused: Refused) -> None:
    strategy = pair()
    scope = strategy.scope()
    with scope:
        pass
    with refused(RuntimeError), scope:
        pass
    with strategy.scope():
        assert gd.get_strategy() is strategy


def strategy_set_inside_a_scope(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope(), refused(RuntimeError):
        gd.experimental_set_strategy(strategy)


def strategy_unset_inside_a_scope(refused: Refused) -> None:
    with pair().scope(), refused(RuntimeError):
        gd.experimental_set_strategy(None)


def strategy_set_inside_a_function(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step() -> None:
        gd.experimental_set_strategy(strategy)

    with refused(RuntimeError):
        step()


def strategy_set_to_a_string(refused: Refused) -> None:
    with refused(TypeError):
        gd.experimental_set_strategy("mirrored")  # type: ignore[arg-type]


def scope_of_another_than_the_set_strategy(refused: Refused) -> None:
    gd.experimental_set_strategy(pair())
    with refused(RuntimeError), gd.OneDeviceStrategy("cpu:0").scope():
        pass
    gd.experimental_set_strategy(None)


def one_device_of_a_list(refused: Refused) -> None:
    with refused(TypeError):
        gd.OneDeviceStrategy(["cpu:0"])


def cross_device_ops_of_text(refused: Refused) -> None:
    with refused(TypeError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops="nccl")  # type: ignore[arg-type]


def negative_packs(refused: Refused) -> None:
    with refused(ValueError):
        gd.NcclAllReduce(num_packs=-1)


def packs_of_text(refused: Refused) -> None:
    with refused(TypeError):
        gd.HierarchicalCopyAllReduce(num_packs="2")  # type: ignore[arg-type]


def accumulation_of_no_function(refused: Refused) -> None:
    with refused(TypeError):
        gd.ReductionToOneDevice(accumulation_fn=3)  # type: ignore[arg-type]


def parameter_device_not_there(refused: Refused) -> None:
    with refused(ValueError):
        gd.CentralStorageStrategy(["cpu:0", "cpu:1"], "tpu:0")


def workers_with_other_options(refused: Refused) -> None:
    with refused(ValueError):
        gd.MultiWorkerMirroredStrategy(communication_options=3)  # type: ignore[arg-type]


def workers_with_no_resolver(refused: Refused) -> None:
    with refused(ValueError):
        gd.MultiWorkerMirroredStrategy(cluster_resolver=3)


def tpu_with_no_resolver(refused: Refused) -> None:
    with refused(ValueError):
        gd.TPUStrategy(3)


def cluster_config_is_no_json(refused: Refused) -> None:
    with mock.patch.dict("os.environ", TF_CONFIG="{cluster"), refused(ValueError):
        gd.MultiWorkerMirroredStrategy()


def cluster_config_is_a_list(refused: Refused) -> None:
    with mock.patch.dict("os.environ", TF_CONFIG="[]"), refused(ValueError):
        gd.MultiWorkerMirroredStrategy()


def bytes_per_pack_negative(refused: Refused) -> None:
    with refused(ValueError):
        gd.CommunicationOptions(bytes_per_pack=-1)


def bytes_per_pack_of_text(refused: Refused) -> None:
    with refused(TypeError):
        gd.CommunicationOptions(bytes_per_pack="8")  # type: ignore[arg-type]


def implementation_unknown(refused: Refused) -> None:
    with refused(ValueError):
        gd.CommunicationOptions(implementation="MPI")


def all_reduce_with_other_options(refused: Refused) -> None:
    def replica_fn() -> Any:
        return gd.get_replica_context().all_reduce("SUM", 1.0, options={"timeout": 3})

    with refused(TypeError):
        pair().run(replica_fn)


def aggregation_that_is_no_reduction(refused: Refused) -> None:
    with refused(ValueError):
        gd.ReduceOp.from_variable_aggregation(gd.VariableAggregation.ONLY_FIRST_REPLICA)


def worker_devices_of_the_default_strategy(refused: Refused) -> None:
    with refused(RuntimeError):
        _ = gd.get_strategy().extended.worker_devices


def reduce_to_a_list_of_devices(refused: Refused) -> None:
    strategy = pair()
    x = per_replica(strategy, np.float32(1))
    with refused(TypeError):
        strategy.extended.reduce_to("SUM", x, ["cpu:0", "cpu:1"])
    assert float(strategy.extended.reduce_to("SUM", x, "cpu:0")) == 3


def reduce_to_no_name(refused: Refused) -> None:
    strategy = pair()
    with refused(ValueError):
        strategy.extended.reduce_to("SUM", per_replica(strategy, np.float32(1)), "")


def reduce_to_by_unknown_op(refused: Refused) -> None:
    strategy = pair()
    with refused(ValueError):
        strategy.extended.reduce_to("MAX", per_replica(strategy, np.float32(1)), "cpu:0")


def reduce_to_of_a_mirrored_value(refused: Refused) -> None:
    strategy = pair()
    x = per_replica(strategy, np.float32(1))
    total = strategy.extended.reduce_to("SUM", x, x)
    with refused(ValueError):
        strategy.extended.reduce_to("SUM", total, "cpu:0")


def reduce_to_in_replica_context(refused: Refused) -> None:
    strategy = pair()
    with refused(RuntimeError):
        strategy.run(lambda: strategy.extended.reduce_to("SUM", jnp.ones(()), "cpu:0"))


def batch_reduce_to_without_pairs(refused: Refused) -> None:
    strategy = pair()
    with refused(TypeError):
        strategy.extended.batch_reduce_to("SUM", [per_replica(strategy, np.float32(1))])


def broadcast_to_nothing(refused: Refused) -> None:
    with refused(TypeError):
        pair().extended.broadcast_to(jnp.ones(()), None)


def update_of_another_strategys_variable(refused: Refused) -> None:
    plain = gd.Variable(1.0, name="plain")
    with refused(ValueError):
        pair().extended.update(plain, lambda v: v.assign(2.0))
    assert float(plain) == 1


def update_that_makes_copies_differ(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        v = gd.Variable(1.0, name="v")
    x = per_replica(strategy, np.float32(1))

    def update(v: gd.Variable, value: Any) -> None:
        v.assign(value)

    with refused(ValueError):
        strategy.extended.update(v, update, args=(x,))
    assert [float(value) for value in v.values] == [1, 1]


def update_in_replica_context_that_makes_copies_differ(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        v = gd.Variable(1.0, name="v")

    def replica_fn() -> None:
        number = jnp.float32(gd.get_replica_context().replica_id_in_sync_group)
        strategy.extended.update(v, lambda v: v.assign(number))

    with refused(ValueError):
        strategy.run(replica_fn)
    assert [float(value) for value in v.values] == [1, 1]


def update_with_values_of_other_shapes(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        v = gd.Variable(1.0, name="v")
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(1 + context.replica_id_in_sync_group, np.float32)
    )
    with refused(ValueError):
        strategy.extended.update(v, lambda v, x: v.assign(x.sum()), args=(rows,))


def colocation_outside_the_scope(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        v = gd.Variable(1.0)
    with refused(RuntimeError), strategy.extended.colocate_vars_with(v):
        pass


def colocation_with_another_strategys_variable(refused: Refused) -> None:
    strategy, plain = pair(), gd.Variable(1.0, name="plain")
    with strategy.scope(), refused(ValueError), strategy.extended.colocate_vars_with(plain):
        pass
