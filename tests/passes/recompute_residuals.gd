# title: a converted weight is gathered and converted again on the way back
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: bf16[4] per_replica) {
  %y, %r, %hs = scan(%x, %w) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : bf16[4] per_replica, bf16[3,4] mirrored, bf16[3,4] per_replica
    body(%h: bf16[4] per_replica, %slice: f32[2] sharded(0)) {
      %all = all_gather(%slice) {axis=0, group_size=2} : f32[4] mirrored
      %n = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] mirrored
      %p = jax.mul(%h, %n) {out_dtype=none} : bf16[4] per_replica
      return %p, %n, %h
    }
  %g, %gs = scan(%y, %r, %hs) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : bf16[4] per_replica, bf16[3,4] per_replica
    body(%d: bf16[4] per_replica, %n: bf16[4] mirrored, %h: bf16[4] per_replica) {
      %back = jax.mul(%d, %n) {out_dtype=none} : bf16[4] per_replica
      %t = jax.mul(%d, %h) {out_dtype=none} : bf16[4] per_replica
      return %back, %t
    }
  return per_replica %g, per_replica %gs
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: bf16[4] per_replica) {
  %y, %r, %hs = scan(%x, %w) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : bf16[4] per_replica, bf16[3,4] mirrored, bf16[3,4] per_replica
    body(%h: bf16[4] per_replica, %slice: f32[2] sharded(0)) {
      %all = all_gather(%slice) {axis=0, group_size=2} : f32[4] mirrored
      %n = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] mirrored
      %p = jax.mul(%h, %n) {out_dtype=none} : bf16[4] per_replica
      return %p, %n, %h
    }
  %g, %gs = scan(%y, %hs, %w) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=1} : bf16[4] per_replica, bf16[3,4] per_replica
    body(%d: bf16[4] per_replica, %h_1: bf16[4] per_replica, %slice_1: f32[2] sharded(0)) {
      %all_1 = all_gather(%slice_1) {axis=0, group_size=2} : f32[4] mirrored
      %n_1 = jax.convert_element_type(%all_1) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] mirrored
      %back = jax.mul(%d, %n_1) {out_dtype=none} : bf16[4] per_replica
      %t = jax.mul(%d, %h_1) {out_dtype=none} : bf16[4] per_replica
      return %back, %t
    }
  return per_replica %g, per_replica %gs
}

# title: the loop back takes the slices already; a value of the state, and one that is returned, stay stacked
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: f32[4] per_replica) {
  %y, %r, %s, %q = scan(%x, %w) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] mirrored, f32[3,4] per_replica, f32[3,4] mirrored
    body(%h: f32[4] per_replica, %slice: f32[2] sharded(0)) {
      %all = all_gather(%slice) {axis=0, group_size=2} : f32[4] mirrored
      %p = jax.mul(%h, %all) {out_dtype=none} : f32[4] per_replica
      %q0 = jax.neg(%all) : f32[4] mirrored
      return %p, %all, %p, %q0
    }
  %g = scan(%y, %w, %r, %s, %q) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica
    body(%d: f32[4] per_replica, %slice: f32[2] sharded(0), %n: f32[4] mirrored, %s0: f32[4] per_replica, %q0: f32[4] mirrored) {
      %sum = jax.reduce_sum(%slice) {axes=(0,), out_sharding=none} : f32[] per_replica
      %a = jax.mul(%d, %n) {out_dtype=none} : f32[4] per_replica
      %b = jax.add(%a, %s0) : f32[4] per_replica
      %c = jax.add(%b, %q0) : f32[4] per_replica
      %e = jax.add(%c, %sum) : f32[4] per_replica
      return %e
    }
  return per_replica %g, %q
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: f32[4] per_replica) {
  %y, %r, %s, %q = scan(%x, %w) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[3,4] mirrored, f32[3,4] per_replica, f32[3,4] mirrored
    body(%h: f32[4] per_replica, %slice: f32[2] sharded(0)) {
      %all = all_gather(%slice) {axis=0, group_size=2} : f32[4] mirrored
      %p = jax.mul(%h, %all) {out_dtype=none} : f32[4] per_replica
      %q0 = jax.neg(%all) : f32[4] mirrored
      return %p, %all, %p, %q0
    }
  %g = scan(%y, %w, %s, %q) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica
    body(%d: f32[4] per_replica, %slice_1: f32[2] sharded(0), %s0: f32[4] per_replica, %q0_1: f32[4] mirrored) {
      %all_1 = all_gather(%slice_1) {axis=0, group_size=2} : f32[4] mirrored
      %sum = jax.reduce_sum(%slice_1) {axes=(0,), out_sharding=none} : f32[] per_replica
      %a = jax.mul(%d, %all_1) {out_dtype=none} : f32[4] per_replica
      %b = jax.add(%a, %s0) : f32[4] per_replica
      %c = jax.add(%b, %q0_1) : f32[4] per_replica
      %e = jax.add(%c, %sum) : f32[4] per_replica
      return %e
    }
  return per_replica %g, %q
}

# title: a variable that every step reads is no stack of copies
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%w: f32[4,4] mirrored = @w, %x: f32[2,4] per_replica) {
  %y, %ts = scan(%w, %x) {num_consts=1, num_carry=1, length=3, reverse=false, unroll=1} : f32[2,4] per_replica, f32[3,4,4] mirrored
    body(%w_in: f32[4,4] mirrored, %h: f32[2,4] per_replica) {
      %t = jax.transpose(%w_in) {permutation=(1, 0)} : f32[4,4] mirrored
      %0 = jax.dot_general(%h, %w_in) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,4] per_replica
      return %0, %t
    }
  %z = scan(%y, %ts) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[2,4] per_replica
    body(%h_in: f32[2,4] per_replica, %t_in: f32[4,4] mirrored) {
      %1 = jax.dot_general(%h_in, %t_in) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,4] per_replica
      return %1
    }
  return per_replica %z
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%w: f32[4,4] mirrored = @w, %x: f32[2,4] per_replica) {
  %y, %ts = scan(%w, %x) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=1} : f32[2,4] per_replica, f32[3,4,4] mirrored
    body(%w_in: f32[4,4] mirrored, %h: f32[2,4] per_replica) {
      %t = jax.transpose(%w_in) {permutation=(1, 0)} : f32[4,4] mirrored
      %0 = jax.dot_general(%h, %w_in) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,4] per_replica
      return %0, %t
    }
  %1 = scan(%w, %y) {length=3, reverse=true, unroll=1, num_consts=1, num_carry=1} : f32[2,4] per_replica
    body(%w_in_1: f32[4,4] mirrored, %h_in: f32[2,4] per_replica) {
      %t_1 = jax.transpose(%w_in_1) {permutation=(1, 0)} : f32[4,4] mirrored
      %2 = jax.dot_general(%h_in, %t_1) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,4] per_replica
      return %2
    }
  return per_replica %1
}

# title: gathered in each step of both loops, from a slice and a stack
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %s: f32[3,4] mirrored, %x: f32[4] per_replica) {
  %y, %r = scan(%w, %x, %s) {num_consts=1, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4,4] mirrored
    body(%w_in: f32[2,4] sharded(0), %h: f32[4] per_replica, %s_in: f32[4] mirrored) {
      %all = all_gather(%w_in) {axis=0, group_size=2} : f32[4,4] mirrored
      %rows = jax.broadcast_in_dim(%s_in) {shape=(4, 4), broadcast_dimensions=(1,), sharding=none} : f32[4,4] mirrored
      %scaled = jax.mul(%all, %rows) {out_dtype=none} : f32[4,4] mirrored
      %0 = jax.dot_general(%h, %scaled) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %0, %scaled
    }
  %z = scan(%y, %r) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica
    body(%h_in: f32[4] per_replica, %r_in: f32[4,4] mirrored) {
      %1 = jax.dot_general(%h_in, %r_in) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %1
    }
  return per_replica %z
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %s: f32[3,4] mirrored, %x: f32[4] per_replica) {
  %y, %r = scan(%w, %x, %s) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=1} : f32[4] per_replica, f32[3,4,4] mirrored
    body(%w_in: f32[2,4] sharded(0), %h: f32[4] per_replica, %s_in: f32[4] mirrored) {
      %all = all_gather(%w_in) {axis=0, group_size=2} : f32[4,4] mirrored
      %rows = jax.broadcast_in_dim(%s_in) {shape=(4, 4), broadcast_dimensions=(1,), sharding=none} : f32[4,4] mirrored
      %scaled = jax.mul(%all, %rows) {out_dtype=none} : f32[4,4] mirrored
      %0 = jax.dot_general(%h, %scaled) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %0, %scaled
    }
  %1 = scan(%w, %y, %s) {length=3, reverse=true, unroll=1, num_consts=1, num_carry=1} : f32[4] per_replica
    body(%w_in_1: f32[2,4] sharded(0), %h_in: f32[4] per_replica, %s_in_1: f32[4] mirrored) {
      %all_1 = all_gather(%w_in_1) {axis=0, group_size=2} : f32[4,4] mirrored
      %rows_1 = jax.broadcast_in_dim(%s_in_1) {shape=(4, 4), broadcast_dimensions=(1,), sharding=none} : f32[4,4] mirrored
      %scaled_1 = jax.mul(%all_1, %rows_1) {out_dtype=none} : f32[4,4] mirrored
      %2 = jax.dot_general(%h_in, %scaled_1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %2
    }
  return per_replica %1
}
