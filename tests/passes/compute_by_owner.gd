# title: shards are exchanged, and so are shards of the results
graph f on 2 replicas, stage spmd
(%x: f32[2,4] sharded(0), %y: f32[2,4] sharded(0)) {
  %a = all_gather(%x) {axis=0, group_size=2} : f32[4,4] mirrored
  %f = jax.dot_general(%a, %a) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  %u = own_slice(%f) {axis=1, group_size=2} : f32[4,2] sharded(1)
  %b = all_gather(%y) {axis=0, group_size=2} : f32[4,4] mirrored
  %g = jax.dot_general(%b, %b) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  %v = own_slice(%g) {axis=1, group_size=2} : f32[4,2] sharded(1)
  return per_replica %u, per_replica %v
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,4] sharded(0), %y: f32[2,4] sharded(0)) {
  %0 = reshape(%x) {shape=(1, 2, 4)} : f32[1,2,4] per_replica
  %1 = reshape(%y) {shape=(1, 2, 4)} : f32[1,2,4] per_replica
  %2 = concatenate(%0, %1) {axis=0} : f32[2,2,4] per_replica
  %3 = all_to_all(%2) {split_axis=0, concat_axis=1, group_size=2} : f32[1,4,4] per_replica
  %4 = scan(%3) {length=1, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[1,4,4] per_replica
    body(%a: f32[4,4] per_replica) {
      %f = jax.dot_general(%a, %a) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
      return %f
    }
  %5 = all_to_all(%4) {split_axis=2, concat_axis=0, group_size=2} : f32[2,4,2] per_replica
  %6 = reshape(%5) {shape=(16,)} : f32[16] per_replica
  %7, %8 = unpack(%6) {shapes=((4, 2), (4, 2)), axes=(1, 1)} : f32[4,2] sharded(1), f32[4,2] sharded(1)
  return per_replica %7, per_replica %8
}

# title: mirrored values are stacked, the last one twice, and results are gathered
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored, %y: f32[4,4] mirrored, %z: f32[4,4] mirrored, %c: f32[4] mirrored) {
  %f = jax.dot_general(%x, %x) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  %g = jax.dot_general(%y, %y) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  %h = jax.dot_general(%z, %z) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  return %f, %g, %h
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored, %y: f32[4,4] mirrored, %z: f32[4,4] mirrored, %c: f32[4] mirrored) {
  %0 = reshape(%x) {shape=(1, 4, 4)} : f32[1,4,4] mirrored
  %1 = reshape(%y) {shape=(1, 4, 4)} : f32[1,4,4] mirrored
  %2 = reshape(%z) {shape=(1, 4, 4)} : f32[1,4,4] mirrored
  %3 = concatenate(%0, %1, %2) {axis=0} : f32[3,4,4] mirrored
  %4 = take_step(%3, 2:i32) : f32[4,4] mirrored
  %5 = reshape(%4) {shape=(1, 4, 4)} : f32[1,4,4] mirrored
  %6 = concatenate(%3, %5) {axis=0} : f32[4,4,4] mirrored
  %7 = own_slice(%6) {axis=0, group_size=2} : f32[2,4,4] sharded(0)
  %8 = scan(%7) {length=2, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[2,4,4] per_replica
    body(%x_1: f32[4,4] per_replica) {
      %f = jax.dot_general(%x_1, %x_1) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
      return %f
    }
  %9 = all_gather(%8) {axis=0, group_size=2} : f32[4,4,4] mirrored
  %10 = reshape(%9) {shape=(64,)} : f32[64] mirrored
  %11, %12, %13, %14 = unpack(%10) {shapes=((4, 4), (4, 4), (4, 4), (16,))} : f32[4,4] mirrored, f32[4,4] mirrored, f32[4,4] mirrored, f32[16] mirrored
  return %11, %12, %13
}

# title: a batch: each entry has an owner; a transpose is done on the shards
graph f on 2 replicas, stage spmd
(%x: f32[4,2,4] sharded(1)) {
  %a = all_gather(%x) {axis=1, group_size=2} : f32[4,4,4] mirrored
  %t = jax.transpose(%a) {permutation=(0, 2, 1)} : f32[4,4,4] mirrored
  %f = jax.dot_general(%t, %t) {dimension_numbers=(((2,), (2,)), ((0,), (0,))), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4,4] mirrored
  return %f
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,2,4] sharded(1)) {
  %t = jax.transpose(%x) {permutation=(0, 2, 1)} : f32[4,4,2] sharded(2)
  %0 = reshape(%t) {shape=(4, 1, 4, 2)} : f32[4,1,4,2] sharded(3)
  %1 = all_to_all(%0) {split_axis=0, concat_axis=3, group_size=2} : f32[2,1,4,4] per_replica
  %2 = scan(%1) {length=2, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[2,1,4,4] per_replica
    body(%t_1: f32[1,4,4] per_replica) {
      %f = jax.dot_general(%t_1, %t_1) {dimension_numbers=(((2,), (2,)), ((0,), (0,))), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,4,4] per_replica
      return %f
    }
  %3 = all_gather(%2) {axis=0, group_size=2} : f32[4,1,4,4] mirrored
  %4 = reshape(%3) {shape=(64,)} : f32[64] mirrored
  %5 = unpack(%4) {shapes=((4, 4, 4),)} : f32[4,4,4] mirrored
  return %5
}

# title: the norm of a matrix is a part of what its owner computes; a sum of two is not
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored, %y: f32[4,4] mirrored, %z: f32[4,4] mirrored) {
  %s = jax.add(%x, %z) : f32[4,4] mirrored
  %a = jax.reduce_max(%s) {axes=(0, 1)} : f32[] mirrored
  %m = jax.div(%s, %a) : f32[4,4] mirrored
  %f = jax.dot_general(%m, %m) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  %t = jax.add(%y, %z) : f32[4,4] mirrored
  %b = jax.reduce_max(%t) {axes=(0, 1)} : f32[] mirrored
  %n = jax.div(%t, %b) : f32[4,4] mirrored
  %g = jax.dot_general(%n, %n) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  return %f, %g
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored, %y: f32[4,4] mirrored, %z: f32[4,4] mirrored) {
  %s = jax.add(%x, %z) : f32[4,4] mirrored
  %t = jax.add(%y, %z) : f32[4,4] mirrored
  %0 = reshape(%s) {shape=(1, 4, 4)} : f32[1,4,4] mirrored
  %1 = reshape(%t) {shape=(1, 4, 4)} : f32[1,4,4] mirrored
  %2 = concatenate(%0, %1) {axis=0} : f32[2,4,4] mirrored
  %3 = own_slice(%2) {axis=0, group_size=2} : f32[1,4,4] sharded(0)
  %4 = scan(%3) {length=1, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[1,4,4] per_replica
    body(%s_1: f32[4,4] per_replica) {
      %a = jax.reduce_max(%s_1) {axes=(0, 1)} : f32[] per_replica
      %m = jax.div(%s_1, %a) : f32[4,4] per_replica
      %f = jax.dot_general(%m, %m) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
      return %f
    }
  %5 = all_gather(%4) {axis=0, group_size=2} : f32[2,4,4] mirrored
  %6 = reshape(%5) {shape=(32,)} : f32[32] mirrored
  %7, %8 = unpack(%6) {shapes=((4, 4), (4, 4))} : f32[4,4] mirrored, f32[4,4] mirrored
  return %7, %8
}

# title: left alone: one computation
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored) {
  %f = jax.dot_general(%x, %x) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  return %f
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored) {
  %f = jax.dot_general(%x, %x) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  return %f
}

# title: left alone: one needs the other's result, though equal
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored) {
  %f = jax.dot_general(%x, %x) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  %g = jax.dot_general(%f, %f) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  return %g
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored) {
  %f = jax.dot_general(%x, %x) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  %g = jax.dot_general(%f, %f) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
  return %g
}

# title: left alone: rows of one matrix are no batch of matrices
graph f on 2 replicas, stage spmd
(%x: f32[4,8] mirrored, %w: f32[8,8] mirrored) {
  %f = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,8] mirrored
  %g = jax.dot_general(%f, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,8] mirrored
  return %g
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,8] mirrored, %w: f32[8,8] mirrored) {
  %f = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,8] mirrored
  %g = jax.dot_general(%f, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,8] mirrored
  return %g
}

# title: left alone: not all replicas take the branch
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored, %y: f32[4,4] mirrored, %i: i32[] per_replica) {
  %u, %v = cond(%i, %x, %y) : f32[4,4] per_replica, f32[4,4] per_replica
    branch0(%a: f32[4,4] mirrored, %b: f32[4,4] mirrored) {
      %f = jax.dot_general(%a, %a) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
      %g = jax.dot_general(%b, %b) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
      return %f, %g
    }
    branch1(%c: f32[4,4] mirrored, %d: f32[4,4] mirrored) {
      return %c, %d
    }
  return per_replica %u, per_replica %v
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,4] mirrored, %y: f32[4,4] mirrored, %i: i32[] per_replica) {
  %u, %v = cond(%i, %x, %y) : f32[4,4] per_replica, f32[4,4] per_replica
    branch0(%a: f32[4,4] mirrored, %b: f32[4,4] mirrored) {
      %f = jax.dot_general(%a, %a) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
      %g = jax.dot_general(%b, %b) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] mirrored
      return %f, %g
    }
    branch1(%c: f32[4,4] mirrored, %d: f32[4,4] mirrored) {
      return %c, %d
    }
  return per_replica %u, per_replica %v
}

# title: left alone: the replicas' values differ
graph f on 2 replicas, stage spmd
(%x: f32[4,4] per_replica, %y: f32[4,4] per_replica) {
  %f = jax.dot_general(%x, %x) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
  %g = jax.dot_general(%y, %y) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
  return per_replica %f, per_replica %g
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,4] per_replica, %y: f32[4,4] per_replica) {
  %f = jax.dot_general(%x, %x) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
  %g = jax.dot_general(%y, %y) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
  return per_replica %f, per_replica %g
}
