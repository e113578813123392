# title: the small constant is gathered in front of the loop, the large one in each step
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %v: f32[2] sharded(0), %x: f32[3,4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %y, %zs = scan(%all, %v, 2.0:f32, %x) {num_consts=2, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[3,4] per_replica
    body(%w0: f32[4,4] mirrored, %v0: f32[2] sharded(0), %c: f32[] mirrored, %row: f32[4] per_replica) {
      %v_all = all_gather(%v0) {axis=0, group_size=2} : f32[4] mirrored
      %p = jax.dot_general(%row, %w0) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %q = jax.add(%p, %v_all) : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %q
    }
  return %y, per_replica %zs
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %v: f32[2] sharded(0), %x: f32[3,4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %v_all = all_gather(%v) {axis=0, group_size=2} : f32[4] mirrored
  %0, %1 = scan(%w, %v, %v_all, 2.0:f32, %x) {num_consts=3, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[3,4] per_replica
    body(%w0: f32[2,4] sharded(0), %v0: f32[2] sharded(0), %v_all_1: f32[4] mirrored, %c: f32[] mirrored, %row: f32[4] per_replica) {
      %w0_1 = all_gather(%w0) {axis=0, group_size=2} : f32[4,4] mirrored
      %p = jax.dot_general(%row, %w0_1) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %q = jax.add(%p, %v_all_1) : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %q
    }
  return %0, per_replica %1
}

# title: what a loop in a loop takes apart, and what is used in slices too
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: f32[2,4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4] mirrored
  %y, %zs = scan(%all, %w, 2.0:f32, %x) {num_consts=2, num_carry=1, length=2, reverse=false, unroll=1} : f32[] mirrored, f32[2,4] per_replica
    body(%w0: f32[3,4] mirrored, %s: f32[3,2] sharded(1), %c: f32[] mirrored, %row: f32[4] per_replica) {
      %z = scan(%row, %w0) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica
        body(%h: f32[4] per_replica, %layer: f32[4] mirrored) {
          %p = jax.mul(%h, %layer) {out_dtype=none} : f32[4] per_replica
          return %p
        }
      %t = jax.reduce_sum(%s) {axes=(0, 1), out_sharding=none} : f32[] per_replica
      %u = jax.mul(%z, %t) {out_dtype=none} : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %u
    }
  return %y, per_replica %zs
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: f32[2,4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4] mirrored
  %y, %zs = scan(%w, %w, 2.0:f32, %x) {num_consts=2, num_carry=1, length=2, reverse=false, unroll=1} : f32[] mirrored, f32[2,4] per_replica
    body(%w0: f32[3,2] sharded(1), %s: f32[3,2] sharded(1), %c: f32[] mirrored, %row: f32[4] per_replica) {
      %w0_1 = all_gather(%w0) {axis=1, group_size=2} : f32[3,4] mirrored
      %z = scan(%row, %w0_1) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica
        body(%h: f32[4] per_replica, %layer: f32[4] mirrored) {
          %p = jax.mul(%h, %layer) {out_dtype=none} : f32[4] per_replica
          return %p
        }
      %t = jax.reduce_sum(%s) {axes=(0, 1), out_sharding=none} : f32[] per_replica
      %u = jax.mul(%z, %t) {out_dtype=none} : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %u
    }
  return %y, per_replica %zs
}

# title: the loop says that it gathers in each step, whatever the memory
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[8,4] mirrored
  %y = scan(%all, %h, %x) {num_consts=1, num_carry=1, length=8, reverse=false, unroll=1, gather="each"} : f32[4] per_replica
    body(%w_in: f32[8,4] mirrored, %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %0 = jax.reduce_sum(%w_in) {axes=(0,), out_sharding=none} : f32[4] mirrored
      %1 = jax.mul(%h_in, %0) {out_dtype=none} : f32[4] per_replica
      %2 = jax.add(%1, %row) : f32[4] per_replica
      return %2
    }
  return per_replica %y
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[8,4] mirrored
  %y = scan(%w, %h, %x) {num_consts=1, num_carry=1, length=8, reverse=false, unroll=1, gather="each"} : f32[4] per_replica
    body(%w_in: f32[4,4] sharded(0), %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %w_in_1 = all_gather(%w_in) {axis=0, group_size=2} : f32[8,4] mirrored
      %0 = jax.reduce_sum(%w_in_1) {axes=(0,), out_sharding=none} : f32[4] mirrored
      %1 = jax.mul(%h_in, %0) {out_dtype=none} : f32[4] per_replica
      %2 = jax.add(%1, %row) : f32[4] per_replica
      return %2
    }
  return per_replica %y
}

# title: the loop says that it gathers once
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %y = scan(%w, %h, %x) {num_consts=1, num_carry=1, length=8, reverse=false, unroll=1, gather="once"} : f32[4] per_replica
    body(%w_in: f32[4,4] sharded(0), %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %all = all_gather(%w_in) {axis=0, group_size=2} : f32[8,4] mirrored
      %0 = jax.reduce_sum(%all) {axes=(0,), out_sharding=none} : f32[4] mirrored
      %1 = jax.mul(%h_in, %0) {out_dtype=none} : f32[4] per_replica
      %2 = jax.add(%1, %row) : f32[4] per_replica
      return %2
    }
  return per_replica %y
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[8,4] mirrored
  %0 = scan(%w, %all, %h, %x) {num_consts=2, num_carry=1, length=8, reverse=false, unroll=1, gather="once"} : f32[4] per_replica
    body(%w_in: f32[4,4] sharded(0), %all_1: f32[8,4] mirrored, %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %1 = jax.reduce_sum(%all_1) {axes=(0,), out_sharding=none} : f32[4] mirrored
      %2 = jax.mul(%h_in, %1) {out_dtype=none} : f32[4] per_replica
      %3 = jax.add(%2, %row) : f32[4] per_replica
      return %3
    }
  return per_replica %0
}
