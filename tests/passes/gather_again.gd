# title: the slices pass the barrier
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %y = jax.dot_general(%x, %all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %x1, %w1 = jax.optimization_barrier(%x, %all) : f32[4] per_replica, f32[4,4] mirrored
  %z = jax.dot_general(%x1, %w1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  return per_replica %y, per_replica %z
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %y = jax.dot_general(%x, %all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %0, %1 = jax.optimization_barrier(%x, %w) : f32[4] per_replica, f32[2,4] sharded(0)
  %all_1 = all_gather(%1) {axis=0, group_size=2} : f32[4,4] mirrored
  %z = jax.dot_general(%0, %all_1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  return per_replica %y, per_replica %z
}

# title: nothing gathered passes
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored, %x: f32[4] per_replica) {
  %x1, %w1 = jax.optimization_barrier(%x, %w) : f32[4] per_replica, f32[4] mirrored
  %z = jax.add(%x1, %w1) : f32[4] per_replica
  return per_replica %z
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored, %x: f32[4] per_replica) {
  %x1, %w1 = jax.optimization_barrier(%x, %w) : f32[4] per_replica, f32[4] mirrored
  %z = jax.add(%x1, %w1) : f32[4] per_replica
  return per_replica %z
}

# title: what nothing else uses needs no barrier
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %x1, %w1 = jax.optimization_barrier(%x, %all) : f32[4] per_replica, f32[4,4] mirrored
  %z = jax.dot_general(%x1, %w1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %v1 = jax.optimization_barrier(%w1) : f32[4,4] mirrored
  return per_replica %z, %v1
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %0 = jax.optimization_barrier(%x) : f32[4] per_replica
  %z = jax.dot_general(%0, %all) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %1 = jax.optimization_barrier(%w) : f32[2,4] sharded(0)
  %all_1 = all_gather(%1) {axis=0, group_size=2} : f32[4,4] mirrored
  return per_replica %z, %all_1
}
