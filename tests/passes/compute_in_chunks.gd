# title: forward and backward pass in one loop: a sum over the rows, a sum of products, a stack
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %e = jax.exp(%l) {accuracy=none} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %q = jax.add(%s, %d) : f32[8] per_replica
  %b = jax.broadcast_in_dim(%q) {shape=(8, 16), broadcast_dimensions=(0,), sharding=none} : f32[8,16] per_replica
  %g = jax.div(%b, %e) : f32[8,16] per_replica
  %v = jax.dot_general(%h, %g) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,16] per_replica
  %u = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  %z = jax.reduce_sum(%q) {axes=(0,), out_sharding=none} : f32[] per_replica
  return per_replica %z, per_replica %v, per_replica %u
}
-->
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %0 = jax.broadcast_in_dim(0.0:f32) {shape=(2, 16), broadcast_dimensions=(), sharding=none} : f32[2,16] mirrored
  %1 = constant() {value=array<i32[4]: 0, 1, 2, 3>} : i32[4] mirrored
  %2, %3, %4 = scan(%h, %w, %d, %0, %1) {length=4, reverse=false, unroll=1, num_consts=3, num_carry=1} : f32[2,16] per_replica, f32[4,2] per_replica, f32[4,2,2] per_replica
    body(%h_1: f32[8,2] per_replica, %w_1: f32[2,16] mirrored, %d_1: f32[8] per_replica, %v: f32[2,16] per_replica, %chunk: i32[] mirrored) {
      %5 = take_part(%h_1, %chunk) {axis=0, count=4} : f32[2,2] per_replica
      %l = jax.dot_general(%5, %w_1) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,16] per_replica
      %e = jax.exp(%l) {accuracy=none} : f32[2,16] per_replica
      %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[2] per_replica
      %6 = take_part(%d_1, %chunk) {axis=0, count=4} : f32[2] per_replica
      %q = jax.add(%s, %6) : f32[2] per_replica
      %b = jax.broadcast_in_dim(%q) {shape=(2, 16), broadcast_dimensions=(0,), sharding=none} : f32[2,16] per_replica
      %g = jax.div(%b, %e) : f32[2,16] per_replica
      %v_1 = jax.dot_general(%5, %g) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,16] per_replica
      %u = jax.dot_general(%g, %w_1) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,2] per_replica
      %7 = jax.add(%v, %v_1) : f32[2,16] per_replica
      return %7, %q, %u
    }
  %q_1 = join_parts(%3) {axis=0} : f32[8] per_replica
  %u_1 = join_parts(%4) {axis=0} : f32[8,2] per_replica
  %z = jax.reduce_sum(%q_1) {axes=(0,), out_sharding=none} : f32[] per_replica
  return per_replica %z, per_replica %2, per_replica %u_1
}

# title: left alone: the large value is a result
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %e = jax.exp(%l) {accuracy=none} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %b = jax.broadcast_in_dim(0.0:f32) {shape=(8,), broadcast_dimensions=(), sharding=none} : f32[8] mirrored
  %q = jax.add(%s, %b) : f32[8] per_replica
  return per_replica %q, per_replica %l
}
-->
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %e = jax.exp(%l) {accuracy=none} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %b = jax.broadcast_in_dim(0.0:f32) {shape=(8,), broadcast_dimensions=(), sharding=none} : f32[8] mirrored
  %q = jax.add(%s, %b) : f32[8] per_replica
  return per_replica %q, per_replica %l
}

# title: left alone: all rows are needed, along either dimension
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %c = jax.cumsum(%l) {axis=0, reverse=false} : f32[8,16] per_replica
  %e = jax.cumsum(%c) {axis=1, reverse=false} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %q = jax.add(%s, %d) : f32[8] per_replica
  return per_replica %q
}
-->
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %c = jax.cumsum(%l) {axis=0, reverse=false} : f32[8,16] per_replica
  %e = jax.cumsum(%c) {axis=1, reverse=false} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %q = jax.add(%s, %d) : f32[8] per_replica
  return per_replica %q
}

# title: left alone: a product of small values stands between
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica, %m: f32[2,2] mirrored) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %e = jax.exp(%l) {accuracy=none} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %q = jax.add(%s, %d) : f32[8] per_replica
  %b = jax.broadcast_in_dim(%q) {shape=(8, 2), broadcast_dimensions=(0,), sharding=none} : f32[8,2] per_replica
  %k = jax.dot_general(%b, %m) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  %n = jax.reduce_sum(%k) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %o = jax.broadcast_in_dim(%n) {shape=(8, 16), broadcast_dimensions=(0,), sharding=none} : f32[8,16] per_replica
  %g = jax.div(%o, %e) : f32[8,16] per_replica
  %u = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  return per_replica %u
}
-->
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica, %m: f32[2,2] mirrored) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %e = jax.exp(%l) {accuracy=none} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %q = jax.add(%s, %d) : f32[8] per_replica
  %b = jax.broadcast_in_dim(%q) {shape=(8, 2), broadcast_dimensions=(0,), sharding=none} : f32[8,2] per_replica
  %k = jax.dot_general(%b, %m) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  %n = jax.reduce_sum(%k) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %o = jax.broadcast_in_dim(%n) {shape=(8, 16), broadcast_dimensions=(0,), sharding=none} : f32[8,16] per_replica
  %g = jax.div(%o, %e) : f32[8,16] per_replica
  %u = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  return per_replica %u
}

# title: left alone: the backward pass depends on the sum over the rows
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %e = jax.exp(%l) {accuracy=none} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %z = jax.reduce_sum(%s) {axes=(0,), out_sharding=none} : f32[] per_replica
  %q = jax.add(%z, %z) : f32[] per_replica
  %b = jax.broadcast_in_dim(%q) {shape=(8, 16), broadcast_dimensions=(), sharding=none} : f32[8,16] per_replica
  %g = jax.div(%b, %e) : f32[8,16] per_replica
  %v = jax.reduce_max(%g) {axes=(1,), out_sharding=none} : f32[8] per_replica
  return per_replica %v
}
-->
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored, %d: f32[8] per_replica) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %e = jax.exp(%l) {accuracy=none} : f32[8,16] per_replica
  %s = jax.reduce_sum(%e) {axes=(1,), out_sharding=none} : f32[8] per_replica
  %z = jax.reduce_sum(%s) {axes=(0,), out_sharding=none} : f32[] per_replica
  %q = jax.add(%z, %z) : f32[] per_replica
  %b = jax.broadcast_in_dim(%q) {shape=(8, 16), broadcast_dimensions=(), sharding=none} : f32[8,16] per_replica
  %g = jax.div(%b, %e) : f32[8,16] per_replica
  %v = jax.reduce_max(%g) {axes=(1,), out_sharding=none} : f32[8] per_replica
  return per_replica %v
}
