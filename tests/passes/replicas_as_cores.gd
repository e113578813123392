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

# title: of a loop over microbatches, the weights are not gathered in front, nor their gradient reduced behind
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %xs: f32[2,1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(16, 2), broadcast_dimensions=(), sharding=none} : f32[16,2] mirrored
  %start = to_partial(%zeros) {reducer="mean", group_size=2} : f32[16,2] partial(mean)
  %sum = scan(%full, %start, %xs) {length=2, reverse=false, num_consts=1, num_carry=1} : f32[16,2] partial(mean)
    body(%v: f32[16,2] mirrored, %total: f32[16,2] partial(mean), %x: f32[1,2] per_replica) {
      %y = jax.dot_general(%x, %v) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
      %g = jax.dot_general(%y, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[16,2] per_replica
      %p = to_partial(%g) {reducer="mean", group_size=2} : f32[16,2] partial(mean)
      %new = jax.add(%total, %p) {out_sharding=none} : f32[16,2] partial(mean)
      return %new
    }
  %d = reduce_scatter(%sum) {reducer="mean", axis=0, group_size=2} : f32[8,2] sharded(0)
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %xs: f32[2,1,2] per_replica) {
  %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(16, 2), broadcast_dimensions=(), sharding=none} : f32[16,2] mirrored
  %d = own_slice(%zeros) {axis=0, group_size=2} : f32[8,2] sharded(0)
  %sum = scan(%w, %d, %xs) {length=2, reverse=false, num_consts=1, num_carry=1} : f32[8,2] sharded(0)
    body(%v: f32[8,2] sharded(0), %total: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
      %0 = all_gather(%x) {axis=0, group_size=2} : f32[2,2] mirrored
      %y = jax.dot_general(%0, %v) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,8] sharded(1)
      %g = jax.dot_general(%y, %0) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] sharded(0)
      %d_1 = scale(%g) {factor=0.5} : f32[8,2] sharded(0)
      %new = jax.add(%total, %d_1) {out_sharding=none} : f32[8,2] sharded(0)
      return %new
    }
  return per_replica %sum
}

# title: products of one gather begin a part together; neither saves it alone
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica, %z: f32[1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %full) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %u = jax.dot_general(%z, %full) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %e = jax.sub(%y, %u) : f32[1,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[1] per_replica
  return per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica, %z: f32[1,2] per_replica) {
  %0 = all_gather(%x) {axis=0, group_size=2} : f32[2,2] mirrored
  %y = jax.dot_general(%0, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,8] sharded(1)
  %1 = all_gather(%z) {axis=0, group_size=2} : f32[2,2] mirrored
  %u = jax.dot_general(%1, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,8] sharded(1)
  %e = jax.sub(%y, %u) : f32[2,8] sharded(1)
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[2] per_replica
  %2 = reduce_scatter(%s) {reducer="sum", axis=0, group_size=2} : f32[1] sharded(0)
  return per_replica %2
}

# title: what all replicas add to the gradient, such as that of a weight decay, is added after its reduction
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %full) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %g = jax.dot_general(%y, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[16,2] per_replica
  %m = jax.sin(%full) {accuracy=none} : f32[16,2] mirrored
  %a = jax.sub(%m, %g) : f32[16,2] per_replica
  %d = reduce_scatter(%a) {reducer="sum", axis=0, group_size=2} : f32[8,2] sharded(0)
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[8,2] sharded(0), %x: f32[1,2] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2} : f32[16,2] mirrored
  %m = jax.sin(%full) {accuracy=none} : f32[16,2] mirrored
  %d = scale(%m) {factor=2} : f32[16,2] mirrored
  %d_1 = own_slice(%d) {axis=0, group_size=2} : f32[8,2] sharded(0)
  %0 = all_gather(%x) {axis=0, group_size=2} : f32[2,2] mirrored
  %y = jax.dot_general(%0, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,8] sharded(1)
  %g = jax.dot_general(%y, %0) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] sharded(0)
  %a = jax.sub(%d_1, %g) : f32[8,2] sharded(0)
  return per_replica %a
}
