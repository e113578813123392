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
  %c = scan(%c0, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[2] per_replica
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
  %c, %n = scan(%0, 0:i32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[2] per_replica, i32[] mirrored
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
  %a, %b, %c, %ys = scan(0.0:f32, 0.0:f32, 0.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=3} : f32[] mirrored, f32[] mirrored, f32[] mirrored, f32[3] mirrored
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
  %c, %d = scan(%c0, %d0, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[2] per_replica, f32[2] per_replica
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
  %c, %i, %w = scan(%c0, 0:i32, 0.0:f32, %x, %n) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=3} : f32[3] per_replica, i32[] per_replica, f32[] per_replica
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
  %c = scan(0:i32, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=1} : i32[] mirrored
    body(%total: i32[] mirrored, %row: i8[2] per_replica) {
      %g = jax.reduce_max(%row) {axes=(0,), out_sharding=none} : i8[] per_replica
      %sum = all_reduce(%g) {reducer="sum", group_size=2} : i8[] mirrored
      %wide = jax.mul(%sum, 100:i8) {out_dtype=dtype<i32>} : i32[] mirrored
      %new = jax.add(%total, %wide) : i32[] mirrored
      return %new
    }
  return %c
}

# title: a running mean, an average that decays, and a scaled total of sums
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %n: f32[4] mirrored, %x: f32[4,2] per_replica) {
  %c, %d, %e = scan(%c0, %c0, %c0, %n, %x) {num_consts=0, num_carry=3, length=4, reverse=false, unroll=1} : f32[2] mirrored, f32[2] mirrored, f32[2] mirrored
    body(%mean: f32[2] mirrored, %average: f32[2] mirrored, %total: f32[2] mirrored, %count: f32[] mirrored, %row: f32[2] per_replica) {
      %g = all_reduce(%row) {reducer="mean", group_size=2} : f32[2] mirrored
      %difference = jax.sub(%g, %mean) : f32[2] mirrored
      %divisor = jax.broadcast_in_dim(%count) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
      %part = jax.div(%difference, %divisor) : f32[2] mirrored
      %next = jax.add(%mean, %part) : f32[2] mirrored
      %square = jax.mul(%row, %row) {out_dtype=none} : f32[2] per_replica
      %h = all_reduce(%square) {reducer="mean", group_size=2} : f32[2] mirrored
      %kept = jax.mul(%average, 0.9:f32) {out_dtype=none} : f32[2] mirrored
      %taken = jax.mul(%h, 0.1:f32) {out_dtype=none} : f32[2] mirrored
      %moved = jax.add(%kept, %taken) : f32[2] mirrored
      %later = jax.add(%moved, 1.0:f32) : f32[2] mirrored
      %sine = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %sum = all_reduce(%sine) {reducer="sum", group_size=2} : f32[2] mirrored
      %scaled = jax.mul(%total, %divisor) {out_dtype=none} : f32[2] mirrored
      %more = jax.sub(%scaled, %sum) : f32[2] mirrored
      return %next, %later, %more
    }
  return %c, %d, %e
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %n: f32[4] mirrored, %x: f32[4,2] per_replica) {
  %0 = select_replica(%c0) {replica=0, group_size=2} : f32[2] per_replica
  %c, %d, %e = scan(%c0, %c0, %0, %n, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=3} : f32[2] per_replica, f32[2] per_replica, f32[2] per_replica
    body(%mean: f32[2] per_replica, %average: f32[2] per_replica, %total: f32[2] per_replica, %count: f32[] mirrored, %row: f32[2] per_replica) {
      %difference = jax.sub(%row, %mean) : f32[2] per_replica
      %divisor = jax.broadcast_in_dim(%count) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
      %part = jax.div(%difference, %divisor) : f32[2] per_replica
      %next = jax.add(%mean, %part) : f32[2] per_replica
      %square = jax.mul(%row, %row) {out_dtype=none} : f32[2] per_replica
      %kept = jax.mul(%average, 0.9:f32) {out_dtype=none} : f32[2] per_replica
      %taken = jax.mul(%square, 0.1:f32) {out_dtype=none} : f32[2] per_replica
      %moved = jax.add(%kept, %taken) : f32[2] per_replica
      %later = jax.add(%moved, 1.0:f32) : f32[2] per_replica
      %sine = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %scaled = jax.mul(%total, %divisor) {out_dtype=none} : f32[2] per_replica
      %more = jax.sub(%scaled, %sine) : f32[2] per_replica
      return %next, %later, %more
    }
  %c_1 = all_reduce(%c) {reducer="mean", group_size=2} : f32[2] mirrored
  %d_1 = all_reduce(%d) {reducer="mean", group_size=2} : f32[2] mirrored
  %e_1 = all_reduce(%e) {reducer="sum", group_size=2} : f32[2] mirrored
  return %c_1, %d_1, %e_1
}

# title: left alone: a square, a carry that is read, a constant beside a sum, a gradient of the carry
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %x: f32[4,2] per_replica) {
  %c, %d, %e, %f, %ys = scan(%c0, %c0, %c0, %c0, %x) {num_consts=0, num_carry=4, length=4, reverse=false, unroll=1} : f32[2] mirrored, f32[2] mirrored, f32[2] mirrored, f32[2] mirrored, f32[4,2] mirrored
    body(%c_in: f32[2] mirrored, %d_in: f32[2] mirrored, %e_in: f32[2] mirrored, %f_in: f32[2] mirrored, %row: f32[2] per_replica) {
      %g = all_reduce(%row) {reducer="mean", group_size=2} : f32[2] mirrored
      %square = jax.mul(%c_in, %c_in) {out_dtype=none} : f32[2] mirrored
      %c_out = jax.add(%square, %g) : f32[2] mirrored
      %sine = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %h = all_reduce(%sine) {reducer="mean", group_size=2} : f32[2] mirrored
      %kept = jax.mul(%d_in, 0.5:f32) {out_dtype=none} : f32[2] mirrored
      %d_out = jax.add(%kept, %h) : f32[2] mirrored
      %cosine = jax.cos(%row) {accuracy=none} : f32[2] per_replica
      %sum = all_reduce(%cosine) {reducer="sum", group_size=2} : f32[2] mirrored
      %half = jax.mul(%e_in, 0.5:f32) {out_dtype=none} : f32[2] mirrored
      %plus = jax.add(%half, 1.0:f32) : f32[2] mirrored
      %e_out = jax.add(%plus, %sum) : f32[2] mirrored
      %own = jax.mul(%f_in, %row) {out_dtype=none} : f32[2] per_replica
      %slope = all_reduce(%own) {reducer="mean", group_size=2} : f32[2] mirrored
      %less = jax.mul(%f_in, 0.9:f32) {out_dtype=none} : f32[2] mirrored
      %f_out = jax.sub(%less, %slope) : f32[2] mirrored
      return %c_out, %d_out, %e_out, %f_out, %d_in
    }
  return %c, %d, %e, %f, %ys
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[2] mirrored, %x: f32[4,2] per_replica) {
  %c, %d, %e, %f, %ys = scan(%c0, %c0, %c0, %c0, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=4} : f32[2] mirrored, f32[2] mirrored, f32[2] mirrored, f32[2] mirrored, f32[4,2] mirrored
    body(%c_in: f32[2] mirrored, %d_in: f32[2] mirrored, %e_in: f32[2] mirrored, %f_in: f32[2] mirrored, %row: f32[2] per_replica) {
      %g = all_reduce(%row) {reducer="mean", group_size=2} : f32[2] mirrored
      %square = jax.mul(%c_in, %c_in) {out_dtype=none} : f32[2] mirrored
      %c_out = jax.add(%square, %g) : f32[2] mirrored
      %sine = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %h = all_reduce(%sine) {reducer="mean", group_size=2} : f32[2] mirrored
      %kept = jax.mul(%d_in, 0.5:f32) {out_dtype=none} : f32[2] mirrored
      %d_out = jax.add(%kept, %h) : f32[2] mirrored
      %cosine = jax.cos(%row) {accuracy=none} : f32[2] per_replica
      %sum = all_reduce(%cosine) {reducer="sum", group_size=2} : f32[2] mirrored
      %half = jax.mul(%e_in, 0.5:f32) {out_dtype=none} : f32[2] mirrored
      %plus = jax.add(%half, 1.0:f32) : f32[2] mirrored
      %e_out = jax.add(%plus, %sum) : f32[2] mirrored
      %own = jax.mul(%f_in, %row) {out_dtype=none} : f32[2] per_replica
      %slope = all_reduce(%own) {reducer="mean", group_size=2} : f32[2] mirrored
      %less = jax.mul(%f_in, 0.9:f32) {out_dtype=none} : f32[2] mirrored
      %f_out = jax.sub(%less, %slope) : f32[2] mirrored
      return %c_out, %d_out, %e_out, %f_out, %d_in
    }
  return %c, %d, %e, %f, %ys
}

# title: what is added is a slice of the reduced value, squeezed; a running mean joins and pads
graph f on 2 replicas, stage spmd
(%c0: f32[3] mirrored, %d0: f32[4] mirrored, %x: f32[4,2,3] per_replica) {
  %c, %d = scan(%c0, %d0, %x) {num_consts=0, num_carry=2, length=4, reverse=false, unroll=1} : f32[3] mirrored, f32[4] mirrored
    body(%total: f32[3] mirrored, %average: f32[4] mirrored, %rows: f32[2,3] per_replica) {
      %all = all_reduce(%rows) {reducer="sum", group_size=2} : f32[2,3] mirrored
      %last = jax.slice(%all) {start_indices=(1, 0), limit_indices=(2, 3), strides=none} : f32[1,3] mirrored
      %row = jax.squeeze(%last) {dimensions=(0,)} : f32[3] mirrored
      %new = jax.add(%total, %row) : f32[3] mirrored
      %sum = jax.reduce_sum(%rows) {axes=(0,), out_sharding=none} : f32[3] per_replica
      %mean = all_reduce(%sum) {reducer="mean", group_size=2} : f32[3] mirrored
      %padded = jax.pad(%mean, 1.0:f32) {padding_config=((1, 0, 0),)} : f32[4] mirrored
      %old = jax.mul(%average, 0.5:f32) {out_dtype=none} : f32[4] mirrored
      %next = jax.add(%old, %padded) : f32[4] mirrored
      return %new, %next
    }
  return %c, %d
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[3] mirrored, %d0: f32[4] mirrored, %x: f32[4,2,3] per_replica) {
  %0 = select_replica(%c0) {replica=0, group_size=2} : f32[3] per_replica
  %c, %d = scan(%0, %d0, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[3] per_replica, f32[4] per_replica
    body(%total: f32[3] per_replica, %average: f32[4] per_replica, %rows: f32[2,3] per_replica) {
      %all = all_reduce(%rows) {reducer="sum", group_size=2} : f32[2,3] mirrored
      %last = jax.slice(%all) {start_indices=(1, 0), limit_indices=(2, 3), strides=none} : f32[1,3] mirrored
      %row = jax.squeeze(%last) {dimensions=(0,)} : f32[3] mirrored
      %last_1 = jax.slice(%rows) {start_indices=(1, 0), limit_indices=(2, 3), strides=none} : f32[1,3] per_replica
      %row_1 = jax.squeeze(%last_1) {dimensions=(0,)} : f32[3] per_replica
      %new = jax.add(%total, %row_1) : f32[3] per_replica
      %sum = jax.reduce_sum(%rows) {axes=(0,), out_sharding=none} : f32[3] per_replica
      %padded = jax.pad(%sum, 1.0:f32) {padding_config=((1, 0, 0),)} : f32[4] per_replica
      %old = jax.mul(%average, 0.5:f32) {out_dtype=none} : f32[4] per_replica
      %next = jax.add(%old, %padded) : f32[4] per_replica
      return %new, %next
    }
  %c_1 = all_reduce(%c) {reducer="sum", group_size=2} : f32[3] mirrored
  %d_1 = all_reduce(%d) {reducer="mean", group_size=2} : f32[4] mirrored
  return %c_1, %d_1
}
