# title: the rows are gathered, and the classes of all rows are reduced over shards of the classes
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %full) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %e = jax.exp(%y) {accuracy=none} : f32[1,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[1] per_replica
  return per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %0 = all_gather(%x) {axis=0, group_size=2} : f32[2,2] mirrored
  %y = jax.dot_general(%0, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,8] sharded(1)
  %e = jax.exp(%y) {accuracy=none} : f32[2,8] sharded(1)
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[2] per_replica
  %1 = reduce_scatter(%s) {reducer="sum", axis=0, group_size=2} : f32[1] sharded(0)
  return per_replica %1
}

# title: the gradient of the weights is complete on the shards
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %full) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %u = jax.tanh(%y) {accuracy=none} : f32[1,16] per_replica
  %g = jax.dot_general(%u, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[16,2] per_replica
  %d = reduce_scatter(%g) {reducer="mean", axis=0, group_size=2} : f32[8,2] sharded(0)
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %0 = all_gather(%x) {axis=0, group_size=2} : f32[2,2] mirrored
  %y = jax.dot_general(%0, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,8] sharded(1)
  %u = jax.tanh(%y) {accuracy=none} : f32[2,8] sharded(1)
  %g = jax.dot_general(%u, %0) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] sharded(0)
  %d = scale(%g) {factor=0.5} : f32[8,2] sharded(0)
  return per_replica %d
}

# title: a replica that scales its own gradient before the sum gathers the weights
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %full) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %u = jax.tanh(%y) {accuracy=none} : f32[1,16] per_replica
  %g = jax.dot_general(%u, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[16,2] per_replica
  %c = jax.tanh(%g) {accuracy=none} : f32[16,2] per_replica
  %d = reduce_scatter(%c) {reducer="sum", axis=0, group_size=2} : f32[8,2] sharded(0)
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %full) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %u = jax.tanh(%y) {accuracy=none} : f32[1,16] per_replica
  %g = jax.dot_general(%u, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[16,2] per_replica
  %c = jax.tanh(%g) {accuracy=none} : f32[16,2] per_replica
  %d = reduce_scatter(%c) {reducer="sum", axis=0, group_size=2} : f32[8,2] sharded(0)
  return per_replica %d
}
