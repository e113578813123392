# title: a loss of all rows but the last, and its gradients
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %s = jax.slice(%l) {start_indices=(0, 0), limit_indices=(7, 16), strides=none} : f32[7,16] per_replica
  %g = jax.exp(%s) {accuracy=none} : f32[7,16] per_replica
  %p = jax.pad(%g, 0.0:f32) {padding_config=((0, 1, 0), (0, 0, 0))} : f32[8,16] per_replica
  %u = jax.dot_general(%p, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  %v = jax.dot_general(%h, %p) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,16] per_replica
  return per_replica %u, per_replica %v
}
-->
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored) {
  %s = jax.slice(%h) {start_indices=(0, 0), limit_indices=(7, 2), strides=none} : f32[7,2] per_replica
  %l = jax.dot_general(%s, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[7,16] per_replica
  %g = jax.exp(%l) {accuracy=none} : f32[7,16] per_replica
  %u = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[7,2] per_replica
  %u_1 = jax.pad(%u, 0.0:f32) {padding_config=((0, 1, 0), (0, 0, 0))} : f32[8,2] per_replica
  %v = jax.slice(%h) {start_indices=(0, 0), limit_indices=(7, 2), strides=none} : f32[7,2] per_replica
  %v_1 = jax.dot_general(%v, %g) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,16] per_replica
  return per_replica %u_1, per_replica %v_1
}

# title: left alone: the product is used unsliced, too
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %s = jax.slice(%l) {start_indices=(0, 0), limit_indices=(7, 16), strides=none} : f32[7,16] per_replica
  return per_replica %s, per_replica %l
}
-->
graph f on 2 replicas, stage spmd
(%h: f32[8,2] per_replica, %w: f32[2,16] mirrored) {
  %l = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,16] per_replica
  %s = jax.slice(%l) {start_indices=(0, 0), limit_indices=(7, 16), strides=none} : f32[7,16] per_replica
  return per_replica %s, per_replica %l
}

# title: left alone: padding by other values, and slices of other values than products
graph f on 2 replicas, stage spmd
(%g: f32[7,16] per_replica, %w: f32[2,16] mirrored, %x: f32[8,16] per_replica) {
  %p = jax.pad(%g, 1.0:f32) {padding_config=((0, 1, 0), (0, 0, 0))} : f32[8,16] per_replica
  %u = jax.dot_general(%p, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  %s = jax.slice(%x) {start_indices=(0, 0), limit_indices=(7, 16), strides=none} : f32[7,16] per_replica
  return per_replica %u, per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%g: f32[7,16] per_replica, %w: f32[2,16] mirrored, %x: f32[8,16] per_replica) {
  %p = jax.pad(%g, 1.0:f32) {padding_config=((0, 1, 0), (0, 0, 0))} : f32[8,16] per_replica
  %u = jax.dot_general(%p, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  %s = jax.slice(%x) {start_indices=(0, 0), limit_indices=(7, 16), strides=none} : f32[7,16] per_replica
  return per_replica %u, per_replica %s
}
