# title: a converted weight, and a reversed loop that gathers two
graph f on 2 replicas, stage spmd
(%w: f32[3,2,4] sharded(1), %v: bf16[3,2] sharded(1), %x: f32[4] per_replica) {
  %y, %hs = scan(%x, %w) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%h: f32[4] per_replica, %slice: f32[2,4] sharded(0)) {
      %n = jax.convert_element_type(%slice) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,4] sharded(0)
      %all = all_gather(%n) {axis=0, group_size=2} : bf16[4,4] mirrored
      %wide = jax.convert_element_type(%all) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,4] mirrored
      %p = jax.dot_general(%h, %wide) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %p, %h
    }
  %g, %gs = scan(1.5:f32, %y, %w, %v, %hs) {num_consts=1, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%c: f32[] mirrored, %d: f32[4] per_replica, %slice: f32[2,4] sharded(0), %v0: bf16[2] sharded(0), %h: f32[4] per_replica) {
      %all = all_gather(%slice) {axis=0, group_size=2} : f32[4,4] mirrored
      %v_all = all_gather(%v0) {axis=0, group_size=2} : bf16[4] mirrored
      %v_wide = jax.convert_element_type(%v_all) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] mirrored
      %p = jax.dot_general(%d, %all) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %q = jax.mul(%p, %c) {out_dtype=none} : f32[4] per_replica
      %s = jax.add(%q, %v_wide) : f32[4] per_replica
      %t = jax.mul(%d, %h) {out_dtype=none} : f32[4] per_replica
      return %s, %t
    }
  return per_replica %g, per_replica %gs
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2,4] sharded(1), %v: bf16[3,2] sharded(1), %x: f32[4] per_replica) {
  %0 = constant() {value=array<i32[3]: 1, 2, 2>} : i32[3] mirrored
  %all = take_step(%w, 0:i32) : f32[2,4] sharded(0)
  %n = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,4] sharded(0)
  %all_1 = all_gather(%n) {axis=0, group_size=2} : bf16[4,4] mirrored
  %1, %2, %3 = scan(%w, %x, %all_1, %w, %0) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=2} : f32[4] per_replica, bf16[4,4] mirrored, f32[3,4] per_replica
    body(%slice: f32[3,2,4] sharded(1), %h: f32[4] per_replica, %all_2: bf16[4,4] mirrored, %slice_1: f32[2,4] sharded(0), %next_step: i32[] mirrored) {
      %all_3 = take_step(%slice, %next_step) : f32[2,4] sharded(0)
      %n_1 = jax.convert_element_type(%all_3) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,4] sharded(0)
      %all_4 = all_gather(%n_1) {axis=0, group_size=2} : bf16[4,4] mirrored
      %n_2 = jax.convert_element_type(%slice_1) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,4] sharded(0)
      %wide = jax.convert_element_type(%all_2) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,4] mirrored
      %p = jax.dot_general(%h, %wide) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %p, %all_4, %h
    }
  %4 = constant() {value=array<i32[3]: 0, 0, 1>} : i32[3] mirrored
  %all_5 = take_step(%w, 2:i32) : f32[2,4] sharded(0)
  %all_6 = all_gather(%all_5) {axis=0, group_size=2} : f32[4,4] mirrored
  %v_all = take_step(%v, 2:i32) : bf16[2] sharded(0)
  %v_all_1 = all_gather(%v_all) {axis=0, group_size=2} : bf16[4] mirrored
  %5, %6, %7, %8 = scan(1.5:f32, %w, %v, %1, %all_6, %v_all_1, %w, %v, %3, %4) {length=3, reverse=true, unroll=1, num_consts=3, num_carry=3} : f32[4] per_replica, f32[4,4] mirrored, bf16[4] mirrored, f32[3,4] per_replica
    body(%c: f32[] mirrored, %slice_2: f32[3,2,4] sharded(1), %v0: bf16[3,2] sharded(1), %d: f32[4] per_replica, %all_7: f32[4,4] mirrored, %v_all_2: bf16[4] mirrored, %slice_3: f32[2,4] sharded(0), %v0_1: bf16[2] sharded(0), %h_1: f32[4] per_replica, %next_step_1: i32[] mirrored) {
      %all_8 = take_step(%slice_2, %next_step_1) : f32[2,4] sharded(0)
      %all_9 = all_gather(%all_8) {axis=0, group_size=2} : f32[4,4] mirrored
      %v_all_3 = take_step(%v0, %next_step_1) : bf16[2] sharded(0)
      %v_all_4 = all_gather(%v_all_3) {axis=0, group_size=2} : bf16[4] mirrored
      %v_wide = jax.convert_element_type(%v_all_2) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] mirrored
      %p_1 = jax.dot_general(%d, %all_7) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %q = jax.mul(%p_1, %c) {out_dtype=none} : f32[4] per_replica
      %s = jax.add(%q, %v_wide) : f32[4] per_replica
      %t = jax.mul(%d, %h_1) {out_dtype=none} : f32[4] per_replica
      return %s, %all_9, %v_all_4, %t
    }
  return per_replica %5, per_replica %8
}

# title: a computed value, and loops of two steps, stay as they are
graph f on 2 replicas, stage spmd
(%w: f32[2,2] sharded(1), %x: f32[4,2] per_replica, %h0: f32[4] per_replica) {
  %y = scan(%h0, %w) {num_consts=0, num_carry=1, length=2, reverse=false, unroll=1} : f32[4] per_replica
    body(%h: f32[4] per_replica, %slice: f32[2] sharded(0)) {
      %all = all_gather(%slice) {axis=0, group_size=2} : f32[4] mirrored
      %p = jax.mul(%h, %all) {out_dtype=none} : f32[4] per_replica
      return %p
    }
  %z, %n = scan(%y, 0:i32, %x) {num_consts=0, num_carry=2, length=4, reverse=false, unroll=1} : f32[4] per_replica, i32[] mirrored
    body(%h: f32[4] per_replica, %i: i32[] mirrored, %row: f32[2] per_replica) {
      %r = jax.cumsum(%row) {axis=0, reverse=false} : f32[2] per_replica
      %all = all_gather(%r) {axis=0, group_size=2} : f32[4] mirrored
      %p = jax.mul(%h, %all) {out_dtype=none} : f32[4] per_replica
      %next = jax.add(%i, 1:i32) : i32[] mirrored
      return %p, %next
    }
  return per_replica %z, %n
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,2] sharded(1), %x: f32[4,2] per_replica, %h0: f32[4] per_replica) {
  %y = scan(%h0, %w) {length=2, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica
    body(%h: f32[4] per_replica, %slice: f32[2] sharded(0)) {
      %all = all_gather(%slice) {axis=0, group_size=2} : f32[4] mirrored
      %p = jax.mul(%h, %all) {out_dtype=none} : f32[4] per_replica
      return %p
    }
  %z, %n = scan(%y, 0:i32, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[4] per_replica, i32[] mirrored
    body(%h_1: f32[4] per_replica, %i: i32[] mirrored, %row: f32[2] per_replica) {
      %r = jax.cumsum(%row) {axis=0, reverse=false} : f32[2] per_replica
      %all_1 = all_gather(%r) {axis=0, group_size=2} : f32[4] mirrored
      %p_1 = jax.mul(%h_1, %all_1) {out_dtype=none} : f32[4] per_replica
      %next = jax.add(%i, 1:i32) : i32[] mirrored
      return %p_1, %next
    }
  return per_replica %z, %n
}

# title: of two gathers the first fits beside both, the second stays
graph f on 2 replicas, stage spmd
(%w: f32[3,32,4] sharded(1), %v: f32[3,64,2] sharded(1), %x: f32[4] per_replica) {
  %y = scan(%x, %w, %v) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica
    body(%h: f32[4] per_replica, %w0: f32[32,4] sharded(0), %v0: f32[64,2] sharded(0)) {
      %w_all = all_gather(%w0) {axis=0, group_size=2} : f32[64,4] mirrored
      %p = jax.dot_general(%w_all, %h) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[64] per_replica
      %v_all = all_gather(%v0) {axis=0, group_size=2} : f32[128,2] mirrored
      %c = jax.reshape(%v_all) {new_sizes=(64, 4), dimensions=none, sharding=none} : f32[64,4] mirrored
      %q = jax.dot_general(%p, %c) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %q
    }
  return per_replica %y
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,32,4] sharded(1), %v: f32[3,64,2] sharded(1), %x: f32[4] per_replica) {
  %0 = constant() {value=array<i32[3]: 1, 2, 2>} : i32[3] mirrored
  %w_all = take_step(%w, 0:i32) : f32[32,4] sharded(0)
  %w_all_1 = all_gather(%w_all) {axis=0, group_size=2} : f32[64,4] mirrored
  %1, %2 = scan(%w, %x, %w_all_1, %w, %v, %0) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=2} : f32[4] per_replica, f32[64,4] mirrored
    body(%w0: f32[3,32,4] sharded(1), %h: f32[4] per_replica, %w_all_2: f32[64,4] mirrored, %w0_1: f32[32,4] sharded(0), %v0: f32[64,2] sharded(0), %next_step: i32[] mirrored) {
      %w_all_3 = take_step(%w0, %next_step) : f32[32,4] sharded(0)
      %w_all_4 = all_gather(%w_all_3) {axis=0, group_size=2} : f32[64,4] mirrored
      %p = jax.dot_general(%w_all_2, %h) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[64] per_replica
      %v_all = all_gather(%v0) {axis=0, group_size=2} : f32[128,2] mirrored
      %c = jax.reshape(%v_all) {new_sizes=(64, 4), dimensions=none, sharding=none} : f32[64,4] mirrored
      %q = jax.dot_general(%p, %c) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %q, %w_all_4
    }
  return per_replica %1
}
