# title: a product of values gathered along rows is computed for the rows of one core after the other
graph f on 2 replicas split over 4 cores, stage spmd
(%x: f32[2,3] per_replica, %w: f32[3,5] per_replica) {
  %g = all_gather_over_cores(%x) {axis=0, num_cores=4} : f32[8,3] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,5] per_replica
  %z = jax.add(%y, %y) : f32[8,5] per_replica
  return per_replica %z
}
-->
graph f on 2 replicas split over 4 cores, stage spmd
(%x: f32[2,3] per_replica, %w: f32[3,5] per_replica) {
  %g = rotate_over_cores(%x) {ahead=1, num_cores=4} : f32[2,3] per_replica
  %g_1 = rotate_over_cores(%x) {ahead=-1, num_cores=4} : f32[2,3] per_replica
  %g_2 = rotate_over_cores(%g) {ahead=1, num_cores=4} : f32[2,3] per_replica
  %y = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %y_1 = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %y_2 = jax.dot_general(%g_1, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %y_3 = jax.dot_general(%g_2, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %y_4 = join_ahead(%y, %y_1, %y_3, %y_2) {axis=0, num_cores=4} : f32[8,5] per_replica
  %z = jax.add(%y_4, %y_4) : f32[8,5] per_replica
  return per_replica %z
}

# title: a product that sums the gathered dimension adds up terms, of slices of the other operand
graph f on 2 replicas split over 2 cores, stage spmd
(%full: f32[6,10] mirrored, %x: f32[2,3] per_replica) {
  %w = slice_of_core(%full) {axis=1, num_cores=2} : f32[6,5] mirrored
  %g = all_gather_over_cores(%x) {axis=1, num_cores=2} : f32[2,6] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %z = jax.add(%y, %y) : f32[2,5] per_replica
  %a = all_gather_over_cores(%z) {axis=1, num_cores=2} : f32[2,10] per_replica
  return per_replica %a
}
-->
graph f on 2 replicas split over 2 cores, stage spmd
(%full: f32[6,10] mirrored, %x: f32[2,3] per_replica) {
  %w = slice_of_core(%full) {axis=1, num_cores=2} : f32[6,5] mirrored
  %g = rotate_over_cores(%x) {ahead=1, num_cores=2} : f32[2,3] per_replica
  %y = slice_ahead(%w) {axis=0, ahead=0, num_cores=2} : f32[3,5] mirrored
  %y_1 = jax.dot_general(%x, %y) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %y_2 = slice_ahead(%w) {axis=0, ahead=1, num_cores=2} : f32[3,5] mirrored
  %y_3 = jax.dot_general(%g, %y_2) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %y_4 = jax.add(%y_1, %y_3) : f32[2,5] per_replica
  %z = jax.add(%y_4, %y_4) : f32[2,5] per_replica
  %a = all_gather_over_cores(%z) {axis=1, num_cores=2} : f32[2,10] per_replica
  return per_replica %a
}

# title: a product that sums the gathered dimension is left alone if its result is the same on all cores
graph f on 2 replicas split over 2 cores, stage spmd
(%w: f32[6,5] mirrored, %x: f32[2,3] per_replica) {
  %g = all_gather_over_cores(%x) {axis=1, num_cores=2} : f32[2,6] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %z = jax.add(%y, %y) : f32[2,5] per_replica
  return per_replica %z
}
-->
graph f on 2 replicas split over 2 cores, stage spmd
(%w: f32[6,5] mirrored, %x: f32[2,3] per_replica) {
  %g = all_gather_over_cores(%x) {axis=1, num_cores=2} : f32[2,6] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %z = jax.add(%y, %y) : f32[2,5] per_replica
  return per_replica %z
}

# title: two products of a gathered value share the shards
graph f on 2 replicas split over 2 cores, stage spmd
(%full: f32[6,10] mirrored, %x: f32[4,3] per_replica, %v: f32[4,2] per_replica) {
  %w = slice_of_core(%full) {axis=1, num_cores=2} : f32[6,5] mirrored
  %g = all_gather_over_cores(%x) {axis=1, num_cores=2} : f32[4,6] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,5] per_replica
  %u = jax.dot_general(%v, %g) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6] per_replica
  %z = jax.add(%y, %y) : f32[4,5] per_replica
  %a = all_gather_over_cores(%z) {axis=1, num_cores=2} : f32[4,10] per_replica
  return per_replica %a, per_replica %u
}
-->
graph f on 2 replicas split over 2 cores, stage spmd
(%full: f32[6,10] mirrored, %x: f32[4,3] per_replica, %v: f32[4,2] per_replica) {
  %w = slice_of_core(%full) {axis=1, num_cores=2} : f32[6,5] mirrored
  %g = rotate_over_cores(%x) {ahead=1, num_cores=2} : f32[4,3] per_replica
  %y = slice_ahead(%w) {axis=0, ahead=0, num_cores=2} : f32[3,5] mirrored
  %y_1 = jax.dot_general(%x, %y) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,5] per_replica
  %y_2 = slice_ahead(%w) {axis=0, ahead=1, num_cores=2} : f32[3,5] mirrored
  %y_3 = jax.dot_general(%g, %y_2) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,5] per_replica
  %y_4 = jax.add(%y_1, %y_3) : f32[4,5] per_replica
  %u = jax.dot_general(%v, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,3] per_replica
  %u_1 = jax.dot_general(%v, %g) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,3] per_replica
  %u_2 = join_ahead(%u, %u_1) {axis=1, num_cores=2} : f32[2,6] per_replica
  %z = jax.add(%y_4, %y_4) : f32[4,5] per_replica
  %a = all_gather_over_cores(%z) {axis=1, num_cores=2} : f32[4,10] per_replica
  return per_replica %a, per_replica %u_2
}

# title: each core adds its term to the sums on their way to another core
graph f on 2 replicas split over 3 cores, stage spmd
(%h: f32[6,3] per_replica, %w: f32[3,5] per_replica) {
  %y = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[6,5] per_replica
  %s = reduce_scatter_over_cores(%y) {axis=0, num_cores=3} : f32[2,5] per_replica
  %z = jax.add(%s, %s) : f32[2,5] per_replica
  %a = all_gather_over_cores(%z) {axis=0, num_cores=3} : f32[6,5] per_replica
  return per_replica %a
}
-->
graph f on 2 replicas split over 3 cores, stage spmd
(%h: f32[6,3] per_replica, %w: f32[3,5] per_replica) {
  %y = slice_ahead(%h) {axis=0, ahead=0, num_cores=3} : f32[2,3] per_replica
  %y_1 = jax.dot_general(%y, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %y_2 = slice_ahead(%h) {axis=0, ahead=1, num_cores=3} : f32[2,3] per_replica
  %y_3 = jax.dot_general(%y_2, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %s = rotate_over_cores(%y_3) {ahead=-1, num_cores=3} : f32[2,5] per_replica
  %s_1 = jax.add(%y_1, %s) : f32[2,5] per_replica
  %y_4 = slice_ahead(%h) {axis=0, ahead=2, num_cores=3} : f32[2,3] per_replica
  %y_5 = jax.dot_general(%y_4, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,5] per_replica
  %s_2 = rotate_over_cores(%y_5) {ahead=1, num_cores=3} : f32[2,5] per_replica
  %s_3 = jax.add(%s_1, %s_2) : f32[2,5] per_replica
  %z = jax.add(%s_3, %s_3) : f32[2,5] per_replica
  %a = all_gather_over_cores(%z) {axis=0, num_cores=3} : f32[6,5] per_replica
  return per_replica %a
}

# title: a sum of products is a sum of products on each core
graph f on 2 replicas split over 2 cores, stage spmd
(%h: f32[8,3] per_replica, %w: f32[3,5] per_replica, %v: f32[3,5] per_replica) {
  %y = jax.dot_general(%h, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,5] per_replica
  %u = jax.dot_general(%h, %v) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,5] per_replica
  %z = jax.add(%y, %u) : f32[8,5] per_replica
  %s = reduce_scatter_over_cores(%z) {axis=0, num_cores=2} : f32[4,5] per_replica
  %a = all_gather_over_cores(%s) {axis=0, num_cores=2} : f32[8,5] per_replica
  return per_replica %a
}
-->
graph f on 2 replicas split over 2 cores, stage spmd
(%h: f32[8,3] per_replica, %w: f32[3,5] per_replica, %v: f32[3,5] per_replica) {
  %y = slice_ahead(%h) {axis=0, ahead=0, num_cores=2} : f32[4,3] per_replica
  %y_1 = jax.dot_general(%y, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,5] per_replica
  %u = jax.dot_general(%y, %v) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,5] per_replica
  %z = jax.add(%y_1, %u) : f32[4,5] per_replica
  %y_2 = slice_ahead(%h) {axis=0, ahead=1, num_cores=2} : f32[4,3] per_replica
  %y_3 = jax.dot_general(%y_2, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,5] per_replica
  %u_1 = jax.dot_general(%y_2, %v) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,5] per_replica
  %z_1 = jax.add(%y_3, %u_1) : f32[4,5] per_replica
  %s = rotate_over_cores(%z_1) {ahead=-1, num_cores=2} : f32[4,5] per_replica
  %s_1 = jax.add(%z, %s) : f32[4,5] per_replica
  %a = all_gather_over_cores(%s_1) {axis=0, num_cores=2} : f32[8,5] per_replica
  return per_replica %a
}

# title: a gathered value of which something else is computed is left alone, and so is a sum that is used twice
graph f on 2 replicas split over 2 cores, stage spmd
(%x: f32[4,3] per_replica, %w: f32[3,6] per_replica) {
  %g = all_gather_over_cores(%x) {axis=0, num_cores=2} : f32[8,3] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,6] per_replica
  %t = jax.tanh(%g) {accuracy=none} : f32[8,3] per_replica
  %a = jax.add(%t, %t) : f32[8,3] per_replica
  %s = reduce_scatter_over_cores(%y) {axis=0, num_cores=2} : f32[4,6] per_replica
  %f = all_reduce_over_cores(%s) {reducer="sum", num_cores=2} : f32[4,6] per_replica
  return per_replica %f, per_replica %y, per_replica %a
}
-->
graph f on 2 replicas split over 2 cores, stage spmd
(%x: f32[4,3] per_replica, %w: f32[3,6] per_replica) {
  %g = all_gather_over_cores(%x) {axis=0, num_cores=2} : f32[8,3] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,6] per_replica
  %t = jax.tanh(%g) {accuracy=none} : f32[8,3] per_replica
  %a = jax.add(%t, %t) : f32[8,3] per_replica
  %s = reduce_scatter_over_cores(%y) {axis=0, num_cores=2} : f32[4,6] per_replica
  %f = all_reduce_over_cores(%s) {reducer="sum", num_cores=2} : f32[4,6] per_replica
  return per_replica %f, per_replica %y, per_replica %a
}

# title: small values are gathered at once
graph f on 2 replicas split over 2 cores, stage spmd
(%x: f32[1,3] per_replica, %w: f32[3,6] per_replica) {
  %g = all_gather_over_cores(%x) {axis=0, num_cores=2} : f32[2,3] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6] per_replica
  %a = jax.add(%y, %y) : f32[2,6] per_replica
  return per_replica %a
}
-->
graph f on 2 replicas split over 2 cores, stage spmd
(%x: f32[1,3] per_replica, %w: f32[3,6] per_replica) {
  %g = all_gather_over_cores(%x) {axis=0, num_cores=2} : f32[2,3] per_replica
  %y = jax.dot_general(%g, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6] per_replica
  %a = jax.add(%y, %y) : f32[2,6] per_replica
  return per_replica %a
}
