# title: the gradient of a weight, of a matrix and of rows of matrices
graph f on 2 replicas, stage spmd
(%x: f32[5,3] per_replica, %g: f32[5,4] per_replica, %y: f32[2,5,3] per_replica, %h: f32[2,5,4] per_replica) {
  %a = jax.dot_general(%g, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,3] per_replica
  %b = jax.transpose(%a) {permutation=(1, 0)} : f32[3,4] per_replica
  %c = jax.dot_general(%h, %y) {dimension_numbers=(((0, 1), (0, 1)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,3] per_replica
  %d = jax.transpose(%c) {permutation=(1, 0)} : f32[3,4] per_replica
  return per_replica %b, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[5,3] per_replica, %g: f32[5,4] per_replica, %y: f32[2,5,3] per_replica, %h: f32[2,5,4] per_replica) {
  %a = jax.dot_general(%g, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,3] per_replica
  %b = jax.dot_general(%x, %g) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[3,4] per_replica
  %c = jax.dot_general(%h, %y) {dimension_numbers=(((0, 1), (0, 1)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,3] per_replica
  %d = jax.dot_general(%y, %h) {dimension_numbers=(((0, 1), (0, 1)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[3,4] per_replica
  return per_replica %b, per_replica %d
}

# title: batch dimensions stay first, and the contracted ones differ
graph f on 2 replicas, stage spmd
(%q: f32[2,6,5,3] per_replica, %k: f32[2,3,6,4] per_replica) {
  %a = jax.dot_general(%q, %k) {dimension_numbers=(((3,), (1,)), ((0, 1), (0, 2))), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6,5,4] per_replica
  %b = jax.transpose(%a) {permutation=(0, 1, 3, 2)} : f32[2,6,4,5] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%q: f32[2,6,5,3] per_replica, %k: f32[2,3,6,4] per_replica) {
  %a = jax.dot_general(%q, %k) {dimension_numbers=(((3,), (1,)), ((0, 1), (0, 2))), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6,5,4] per_replica
  %b = jax.dot_general(%k, %q) {dimension_numbers=(((1,), (3,)), ((0, 2), (0, 1))), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6,4,5] per_replica
  return per_replica %b
}

# title: left alone: the product is used untransposed, or the batch moves, or the operand's own dimensions change places
graph f on 2 replicas, stage spmd
(%x: f32[5,3] per_replica, %g: f32[5,4] per_replica, %q: f32[2,5,3] per_replica, %k: f32[2,3,4] per_replica, %w: f32[3,4] per_replica) {
  %a = jax.dot_general(%g, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,3] per_replica
  %b = jax.transpose(%a) {permutation=(1, 0)} : f32[3,4] per_replica
  %c = jax.dot_general(%q, %k) {dimension_numbers=(((2,), (1,)), ((0,), (0,))), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5,4] per_replica
  %d = jax.transpose(%c) {permutation=(2, 1, 0)} : f32[4,5,2] per_replica
  %e = jax.dot_general(%q, %w) {dimension_numbers=(((2,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5,4] per_replica
  %f = jax.transpose(%e) {permutation=(2, 1, 0)} : f32[4,5,2] per_replica
  return per_replica %a, per_replica %b, per_replica %d, per_replica %f
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[5,3] per_replica, %g: f32[5,4] per_replica, %q: f32[2,5,3] per_replica, %k: f32[2,3,4] per_replica, %w: f32[3,4] per_replica) {
  %a = jax.dot_general(%g, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,3] per_replica
  %b = jax.transpose(%a) {permutation=(1, 0)} : f32[3,4] per_replica
  %c = jax.dot_general(%q, %k) {dimension_numbers=(((2,), (1,)), ((0,), (0,))), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5,4] per_replica
  %d = jax.transpose(%c) {permutation=(2, 1, 0)} : f32[4,5,2] per_replica
  %e = jax.dot_general(%q, %w) {dimension_numbers=(((2,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5,4] per_replica
  %f = jax.transpose(%e) {permutation=(2, 1, 0)} : f32[4,5,2] per_replica
  return per_replica %a, per_replica %b, per_replica %d, per_replica %f
}
