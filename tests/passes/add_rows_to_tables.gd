# title: gradient descent adds the rows to the table, each times the rate
# not executed: the text lacks JAX's dimension numbers; test_add_rows_to_tables.py compares numbers
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 2), broadcast_dimensions=(), sharding=none} : f32[4,2] mirrored
  %g = jax.scatter-add(%z, %i, %u) {update_jaxpr=<0: Jaxpr>, update_consts=(), dimension_numbers=<1: ScatterDimensionNumbers>, indices_are_sorted=false, unique_indices=false, mode=<2: GatherScatterMode>} : f32[4,2] mirrored
  %m = jax.mul(0.5:f32, %g) {out_dtype=none} : f32[4,2] mirrored
  %n = jax.sub(%t, %m) : f32[4,2] mirrored
  return %n
}
-->

# title: a shard of the gradient is added to a shard of the table
# not executed: the text lacks JAX's dimension numbers; test_lookups_on_shards.py compares numbers
graph f on 2 replicas, stage spmd
(%t: f32[4,2] sharded(0), %i: i32[3,1] per_replica, %u: f32[3,2] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 2), broadcast_dimensions=(), sharding=none} : f32[4,2] mirrored
  %g = jax.scatter-add(%z, %i, %u) {update_jaxpr=<0: Jaxpr>, update_consts=(), dimension_numbers=<1: ScatterDimensionNumbers>, indices_are_sorted=false, unique_indices=false, mode=<2: GatherScatterMode>} : f32[4,2] per_replica
  %s = as_shard(%g) {axis=0, group_size=2} : f32[4,2] sharded(0)
  %n = jax.add(%t, %s) : f32[4,2] sharded(0)
  return per_replica %n
}
-->

# title: a gradient that is returned, too, stays
# not executed: the text lacks JAX's dimension numbers; test_add_rows_to_tables.py compares numbers
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 2), broadcast_dimensions=(), sharding=none} : f32[4,2] mirrored
  %g = jax.scatter-add(%z, %i, %u) {update_jaxpr=<0: Jaxpr>, update_consts=(), dimension_numbers=<1: ScatterDimensionNumbers>, indices_are_sorted=false, unique_indices=false, mode=<2: GatherScatterMode>} : f32[4,2] mirrored
  %n = jax.add(%t, %g) : f32[4,2] mirrored
  return %n, %g
}
-->
