# title: a mean divided by the number of turns
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %x: f32[4,2] per_replica) {
  %c = scan(%c0, %x) {num_consts=0, num_carry=1, length=4, reverse=false, unroll=1} : f32[2] mirrored
    body(%total: f32[2] mirrored, %row: f32[2] per_replica) {
      %g = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %mean = all_reduce(%g) {reducer="mean", group_size=2} : f32[2] mirrored
      %part = jax.div(%mean, 4.0:f32) : f32[2] mirrored
      %new = jax.add(%total, %part) : f32[2] mirrored
      return %new
    }
  return %c
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %x: f32[4,2] per_replica) {
  %c = scan(%c0, %x) {num_consts=0, num_carry=1, length=4, reverse=false, unroll=1} : f32[2] per_replica
    body(%total: f32[2] per_replica, %row: f32[2] per_replica) {
      %g = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %mean = all_reduce(%g) {reducer="mean", group_size=2} : f32[2] mirrored
      %part = jax.div(%mean, 4.0:f32) : f32[2] mirrored
      %part_1 = jax.div(%g, 4.0:f32) : f32[2] per_replica
      %new = jax.add(%total, %part_1) : f32[2] per_replica
      return %new
    }
  %c_1 = all_reduce(%c) {reducer="mean", group_size=2} : f32[2] mirrored
  return %c_1
}

# title: a sum of bfloat16 in float32, subtracted, beside a carry that stays
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %x: bf16[3,2] per_replica) {
  %c, %n = scan(%c0, 0:i32, %x) {num_consts=0, num_carry=2, length=3, reverse=false, unroll=1} : f32[2] mirrored, i32[] mirrored
    body(%total: f32[2] mirrored, %count: i32[] mirrored, %row: bf16[2] per_replica) {
      %sum = all_reduce(%row) {reducer="sum", group_size=2} : bf16[2] mirrored
      %wide = jax.convert_element_type(%sum) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2] mirrored
      %new = jax.sub(%total, %wide) : f32[2] mirrored
      %next = jax.add(%count, 1:i32) : i32[] mirrored
      return %new, %next
    }
  %out = jax.convert_element_type(%c) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2] mirrored
  return %out, %n
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %x: bf16[3,2] per_replica) {
  %0 = select_replica(%c0) {replica=0, group_size=2} : f32[2] per_replica
  %c, %n = scan(%0, 0:i32, %x) {num_consts=0, num_carry=2, length=3, reverse=false, unroll=1} : f32[2] per_replica, i32[] mirrored
    body(%total: f32[2] per_replica, %count: i32[] mirrored, %row: bf16[2] per_replica) {
      %sum = all_reduce(%row) {reducer="sum", group_size=2} : bf16[2] mirrored
      %wide = jax.convert_element_type(%sum) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2] mirrored
      %wide_1 = jax.convert_element_type(%row) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2] per_replica
      %new = jax.sub(%total, %wide_1) : f32[2] per_replica
      %next = jax.add(%count, 1:i32) : i32[] mirrored
      return %new, %next
    }
  %c_1 = all_reduce(%c) {reducer="sum", group_size=2} : f32[2] mirrored
  %out = jax.convert_element_type(%c_1) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2] mirrored
  return %out, %n
}

# title: left alone: a total that is read, a reduction that is used, other reducers, one turn
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %a, %b, %c, %ys = scan(0.0:f32, 0.0:f32, 0.0:f32, %x) {num_consts=0, num_carry=3, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[] mirrored, f32[] mirrored, f32[3] mirrored
    body(%a_in: f32[] mirrored, %b_in: f32[] mirrored, %c_in: f32[] mirrored, %row: f32[] per_replica) {
      %sum = all_reduce(%row) {reducer="sum", group_size=2} : f32[] mirrored
      %most = all_reduce(%row) {reducer="max", group_size=2} : f32[] mirrored
      %a_out = jax.add(%a_in, %sum) : f32[] mirrored
      %b_out = jax.add(%b_in, %most) : f32[] mirrored
      %square = jax.mul(%row, %row) {out_dtype=none} : f32[] per_replica
      %mean = all_reduce(%square) {reducer="mean", group_size=2} : f32[] mirrored
      %c_out = jax.add(%c_in, %mean) : f32[] mirrored
      %y = jax.mul(%sum, %c_in) {out_dtype=none} : f32[] mirrored
      return %a_out, %b_out, %c_out, %y
    }
  return %a, %b, %c, %ys
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %a, %b, %c, %ys = scan(0.0:f32, 0.0:f32, 0.0:f32, %x) {num_consts=0, num_carry=3, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[] mirrored, f32[] mirrored, f32[3] mirrored
    body(%a_in: f32[] mirrored, %b_in: f32[] mirrored, %c_in: f32[] mirrored, %row: f32[] per_replica) {
      %sum = all_reduce(%row) {reducer="sum", group_size=2} : f32[] mirrored
      %most = all_reduce(%row) {reducer="max", group_size=2} : f32[] mirrored
      %a_out = jax.add(%a_in, %sum) : f32[] mirrored
      %b_out = jax.add(%b_in, %most) : f32[] mirrored
      %square = jax.mul(%row, %row) {out_dtype=none} : f32[] per_replica
      %mean = all_reduce(%square) {reducer="mean", group_size=2} : f32[] mirrored
      %c_out = jax.add(%c_in, %mean) : f32[] mirrored
      %y = jax.mul(%sum, %c_in) {out_dtype=none} : f32[] mirrored
      return %a_out, %b_out, %c_out, %y
    }
  return %a, %b, %c, %ys
}

# title: left alone: a factor of each replica's own, and a carry that begins differently
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %d0: f32[2] per_replica, %x: f32[4,2] per_replica) {
  %c, %d = scan(%c0, %d0, %x) {num_consts=0, num_carry=2, length=4, reverse=false, unroll=1} : f32[2] per_replica, f32[2] per_replica
    body(%total: f32[2] per_replica, %other: f32[2] per_replica, %row: f32[2] per_replica) {
      %a = all_reduce(%row) {reducer="sum", group_size=2} : f32[2] mirrored
      %own = jax.mul(%a, %row) {out_dtype=none} : f32[2] per_replica
      %new = jax.add(%total, %own) : f32[2] per_replica
      %b = all_reduce(%row) {reducer="mean", group_size=2} : f32[2] mirrored
      %next = jax.add(%other, %b) : f32[2] per_replica
      return %new, %next
    }
  return per_replica %c, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %d0: f32[2] per_replica, %x: f32[4,2] per_replica) {
  %c, %d = scan(%c0, %d0, %x) {num_consts=0, num_carry=2, length=4, reverse=false, unroll=1} : f32[2] per_replica, f32[2] per_replica
    body(%total: f32[2] per_replica, %other: f32[2] per_replica, %row: f32[2] per_replica) {
      %a = all_reduce(%row) {reducer="sum", group_size=2} : f32[2] mirrored
      %own = jax.mul(%a, %row) {out_dtype=none} : f32[2] per_replica
      %new = jax.add(%total, %own) : f32[2] per_replica
      %b = all_reduce(%row) {reducer="mean", group_size=2} : f32[2] mirrored
      %next = jax.add(%other, %b) : f32[2] per_replica
      return %new, %next
    }
  return per_replica %c, per_replica %d
}

# title: a broadcast number, integers, a widened float16, a carry that is only renamed, and a factor that nothing needs
graph f on 2 replicas, stage spmd
(%c0: f32[3] mirrored, %x: f32[4,3] per_replica, %n: i32[4,2] per_replica) {
  %c, %i, %w = scan(%c0, 0:i32, 0.0:f32, %x, %n) {num_consts=0, num_carry=3, length=4, reverse=false, unroll=1} : f32[3] mirrored, i32[] mirrored, f32[] mirrored
    body(%total: f32[3] mirrored, %count: i32[] mirrored, %wide: f32[] mirrored, %row: f32[3] per_replica, %ns: i32[2] per_replica) {
      %g = jax.reduce_sum(%row) {axes=(0,), out_sharding=none} : f32[] per_replica
      %mean = all_reduce(%g) {reducer="mean", group_size=2} : f32[] mirrored
      %dead = jax.mul(%mean, 3.0:f32) {out_dtype=none} : f32[] mirrored
      %all = jax.broadcast_in_dim(%mean) {shape=(3,), broadcast_dimensions=(), sharding=none} : f32[3] mirrored
      %new = jax.add(%total, %all) : f32[3] mirrored
      %k = jax.reduce_sum(%ns) {axes=(0,), out_sharding=none} : i32[] per_replica
      %sum = all_reduce(%k) {reducer="sum", group_size=2} : i32[] mirrored
      %twice = jax.mul(%sum, 2:i32) {out_dtype=none} : i32[] mirrored
      %next = jax.sub(%count, %twice) : i32[] mirrored
      %small = jax.convert_element_type(%k) {new_dtype=dtype<f16>, weak_type=false, sharding=none} : f16[] per_replica
      %half = all_reduce(%small) {reducer="mean", group_size=2} : f16[] mirrored
      %single = jax.convert_element_type(%half) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[] mirrored
      %same = jax.convert_element_type(%wide) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[] mirrored
      %later = jax.add(%same, %single) : f32[] mirrored
      return %new, %next, %later
    }
  return %c, %i, %w
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[3] mirrored, %x: f32[4,3] per_replica, %n: i32[4,2] per_replica) {
  %c, %i, %w = scan(%c0, 0:i32, 0.0:f32, %x, %n) {num_consts=0, num_carry=3, length=4, reverse=false, unroll=1} : f32[3] per_replica, i32[] per_replica, f32[] per_replica
    body(%total: f32[3] per_replica, %count: i32[] per_replica, %wide: f32[] per_replica, %row: f32[3] per_replica, %ns: i32[2] per_replica) {
      %g = jax.reduce_sum(%row) {axes=(0,), out_sharding=none} : f32[] per_replica
      %mean = all_reduce(%g) {reducer="mean", group_size=2} : f32[] mirrored
      %all = jax.broadcast_in_dim(%mean) {shape=(3,), broadcast_dimensions=(), sharding=none} : f32[3] mirrored
      %all_1 = jax.broadcast_in_dim(%g) {shape=(3,), broadcast_dimensions=(), sharding=none} : f32[3] per_replica
      %new = jax.add(%total, %all_1) : f32[3] per_replica
      %k = jax.reduce_sum(%ns) {axes=(0,), out_sharding=none} : i32[] per_replica
      %sum = all_reduce(%k) {reducer="sum", group_size=2} : i32[] mirrored
      %twice = jax.mul(%sum, 2:i32) {out_dtype=none} : i32[] mirrored
      %twice_1 = jax.mul(%k, 2:i32) {out_dtype=none} : i32[] per_replica
      %next = jax.sub(%count, %twice_1) : i32[] per_replica
      %small = jax.convert_element_type(%k) {new_dtype=dtype<f16>, weak_type=false, sharding=none} : f16[] per_replica
      %half = all_reduce(%small) {reducer="mean", group_size=2} : f16[] mirrored
      %single = jax.convert_element_type(%half) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[] mirrored
      %single_1 = jax.convert_element_type(%small) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[] per_replica
      %later = jax.add(%wide, %single_1) : f32[] per_replica
      return %new, %next, %later
    }
  %c_1 = all_reduce(%c) {reducer="mean", group_size=2} : f32[3] mirrored
  %i_1 = all_reduce(%i) {reducer="sum", group_size=2} : i32[] mirrored
  %w_1 = all_reduce(%w) {reducer="mean", group_size=2} : f32[] mirrored
  return %c_1, %i_1, %w_1
}

# title: left alone: a product of another dtype than its factors, which wrap
graph f on 2 replicas, stage spmd
(%x: i8[4,2] per_replica) {
  %c = scan(0:i32, %x) {num_consts=0, num_carry=1, length=4, reverse=false, unroll=1} : i32[] mirrored
    body(%total: i32[] mirrored, %row: i8[2] per_replica) {
      %g = jax.reduce_max(%row) {axes=(0,), out_sharding=none} : i8[] per_replica
      %sum = all_reduce(%g) {reducer="sum", group_size=2} : i8[] mirrored
      %wide = jax.mul(%sum, 100:i8) {out_dtype=dtype<i32>} : i32[] mirrored
      %new = jax.add(%total, %wide) : i32[] mirrored
      return %new
    }
  return %c
}
-->
graph f on 2 replicas, stage spmd
(%x: i8[4,2] per_replica) {
  %c = scan(0:i32, %x) {num_consts=0, num_carry=1, length=4, reverse=false, unroll=1} : i32[] mirrored
    body(%total: i32[] mirrored, %row: i8[2] per_replica) {
      %g = jax.reduce_max(%row) {axes=(0,), out_sharding=none} : i8[] per_replica
      %sum = all_reduce(%g) {reducer="sum", group_size=2} : i8[] mirrored
      %wide = jax.mul(%sum, 100:i8) {out_dtype=dtype<i32>} : i32[] mirrored
      %new = jax.add(%total, %wide) : i32[] mirrored
      return %new
    }
  return %c
}
