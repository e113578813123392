# title: weights are gathered and gradients scattered in the loops over layers, forward and backward
graph f on 2 replicas, stage spmd
(%w: f32[3,2,4] sharded(1), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4,4] mirrored
  %y, %xs = scan(%x, %all) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%h: f32[4] per_replica, %layer: f32[4,4] mirrored) {
      %product = jax.dot_general(%h, %layer) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %product, %h
    }
  %d, %gs = scan(%y, %all, %xs) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica, f32[3,4,4] per_replica
    body(%g: f32[4] per_replica, %layer: f32[4,4] mirrored, %h: f32[4] per_replica) {
      %back = jax.dot_general(%g, %layer) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %outer = jax.dot_general(%h, %g) {dimension_numbers=(((), ()), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
      return %back, %outer
    }
  %s = reduce_scatter(%gs) {reducer="mean", axis=1, group_size=2} : f32[3,2,4] sharded(1)
  return per_replica %d, per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2,4] sharded(1), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4,4] mirrored
  %y, %xs = scan(%x, %w) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%h: f32[4] per_replica, %layer: f32[2,4] sharded(0)) {
      %all_1 = all_gather(%layer) {axis=0, group_size=2} : f32[4,4] mirrored
      %product = jax.dot_general(%h, %all_1) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %product, %h
    }
  %d, %gs = scan(%y, %w, %xs) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica, f32[3,2,4] sharded(1)
    body(%g: f32[4] per_replica, %layer_1: f32[2,4] sharded(0), %h_1: f32[4] per_replica) {
      %all_2 = all_gather(%layer_1) {axis=0, group_size=2} : f32[4,4] mirrored
      %back = jax.dot_general(%g, %all_2) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %outer = jax.dot_general(%h_1, %g) {dimension_numbers=(((), ()), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
      %s = reduce_scatter(%outer) {reducer="mean", axis=0, group_size=2} : f32[2,4] sharded(0)
      return %back, %s
    }
  return per_replica %d, per_replica %gs
}

# title: a conversion and a scale between the stack and its reduce_scatter move in
graph f on 2 replicas, stage spmd
(%x: bf16[3,4] per_replica) {
  %n, %gs = scan(0:i32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : i32[] mirrored, bf16[3,4] per_replica
    body(%i: i32[] mirrored, %row: bf16[4] per_replica) {
      %next = jax.add(%i, 1:i32) : i32[] mirrored
      %g = jax.sin(%row) {accuracy=none} : bf16[4] per_replica
      return %next, %g
    }
  %wide = jax.convert_element_type(%gs) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[3,4] per_replica
  %half = jax.mul(%wide, 0.5:f32) {out_dtype=none} : f32[3,4] per_replica
  %s = reduce_scatter(%half) {reducer="sum", axis=1, group_size=2} : f32[3,2] sharded(1)
  return %n, per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%x: bf16[3,4] per_replica) {
  %n, %gs = scan(0:i32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : i32[] mirrored, f32[3,2] sharded(1)
    body(%i: i32[] mirrored, %row: bf16[4] per_replica) {
      %next = jax.add(%i, 1:i32) : i32[] mirrored
      %g = jax.sin(%row) {accuracy=none} : bf16[4] per_replica
      %wide = jax.convert_element_type(%g) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
      %half = jax.mul(%wide, 0.5:f32) {out_dtype=none} : f32[4] per_replica
      %s = reduce_scatter(%half) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
      return %next, %s
    }
  return %n, per_replica %gs
}

# title: through an outer loop into the inner one
graph f on 2 replicas, stage spmd
(%w: f32[2,3,2] sharded(2), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=2, group_size=2} : f32[2,3,4] mirrored
  %y = scan(%x, %all) {num_consts=0, num_carry=1, length=2, reverse=false, unroll=1} : f32[4] per_replica
    body(%h: f32[4] per_replica, %group: f32[3,4] mirrored) {
      %z = scan(%h, %group) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica
        body(%k: f32[4] per_replica, %row: f32[4] mirrored) {
          %sum = jax.add(%k, %row) : f32[4] per_replica
          return %sum
        }
      return %z
    }
  return per_replica %y
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,3,2] sharded(2), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=2, group_size=2} : f32[2,3,4] mirrored
  %y = scan(%x, %w) {num_consts=0, num_carry=1, length=2, reverse=false, unroll=1} : f32[4] per_replica
    body(%h: f32[4] per_replica, %group: f32[3,2] sharded(1)) {
      %all_1 = all_gather(%group) {axis=1, group_size=2} : f32[3,4] mirrored
      %z = scan(%h, %group) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica
        body(%k: f32[4] per_replica, %row: f32[2] sharded(0)) {
          %all_2 = all_gather(%row) {axis=0, group_size=2} : f32[4] mirrored
          %sum = jax.add(%k, %all_2) : f32[4] per_replica
          return %sum
        }
      return %z
    }
  return per_replica %y
}

# title: what moves in and what stays: slices along the loop, a value that is returned too, a constant, a loop of one step
graph f on 2 replicas, stage spmd
(%a: f32[2,4] sharded(0), %b: f32[4,2] sharded(1), %c: f32[2] sharded(0), %e: f32[1,2] sharded(1)) {
  %a_all = all_gather(%a) {axis=0, group_size=2} : f32[4,4] mirrored
  %b_all = all_gather(%b) {axis=1, group_size=2} : f32[4,4] mirrored
  %c_all = all_gather(%c) {axis=0, group_size=2} : f32[4] mirrored
  %e_all = all_gather(%e) {axis=1, group_size=2} : f32[1,4] mirrored
  %y, %ys = scan(%c_all, %c_all, %a_all, %b_all) {num_consts=1, num_carry=1, length=4, reverse=false, unroll=1} : f32[4] mirrored, f32[4,4] mirrored
    body(%c_in: f32[4] mirrored, %h: f32[4] mirrored, %a_row: f32[4] mirrored, %b_row: f32[4] mirrored) {
      %p = jax.mul(%h, %a_row) {out_dtype=none} : f32[4] mirrored
      %q = jax.add(%p, %b_row) : f32[4] mirrored
      %r = jax.add(%q, %c_in) : f32[4] mirrored
      return %r, %q
    }
  %z = scan(%y, %e_all) {num_consts=0, num_carry=1, length=1, reverse=false, unroll=1} : f32[4] mirrored
    body(%h: f32[4] mirrored, %row: f32[4] mirrored) {
      %sum = jax.add(%h, %row) : f32[4] mirrored
      return %sum
    }
  %s = reduce_scatter(%ys) {reducer="sum", axis=0, group_size=2} : f32[2,4] sharded(0)
  return %z, %b_all, per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%a: f32[2,4] sharded(0), %b: f32[4,2] sharded(1), %c: f32[2] sharded(0), %e: f32[1,2] sharded(1)) {
  %a_all = all_gather(%a) {axis=0, group_size=2} : f32[4,4] mirrored
  %b_all = all_gather(%b) {axis=1, group_size=2} : f32[4,4] mirrored
  %c_all = all_gather(%c) {axis=0, group_size=2} : f32[4] mirrored
  %e_all = all_gather(%e) {axis=1, group_size=2} : f32[1,4] mirrored
  %y, %ys = scan(%c_all, %c_all, %a_all, %b_all) {num_consts=1, num_carry=1, length=4, reverse=false, unroll=1} : f32[4] mirrored, f32[4,4] mirrored
    body(%c_in: f32[4] mirrored, %h: f32[4] mirrored, %a_row: f32[4] mirrored, %b_row: f32[4] mirrored) {
      %p = jax.mul(%h, %a_row) {out_dtype=none} : f32[4] mirrored
      %q = jax.add(%p, %b_row) : f32[4] mirrored
      %r = jax.add(%q, %c_in) : f32[4] mirrored
      return %r, %q
    }
  %z = scan(%y, %e_all) {num_consts=0, num_carry=1, length=1, reverse=false, unroll=1} : f32[4] mirrored
    body(%h_1: f32[4] mirrored, %row: f32[4] mirrored) {
      %sum = jax.add(%h_1, %row) : f32[4] mirrored
      return %sum
    }
  %s = reduce_scatter(%ys) {reducer="sum", axis=0, group_size=2} : f32[2,4] sharded(0)
  return %z, %b_all, per_replica %s
}
