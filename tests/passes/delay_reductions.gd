# title: a mean divided by the number of iterations
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
  %0 = to_partial(%c0) {reducer="mean", group_size=2} : f32[2] partial(mean)
  %c = scan(%0, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[2] partial(mean)
    body(%total: f32[2] partial(mean), %row: f32[2] per_replica) {
      %g = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %1 = to_partial(%g) {reducer="mean", group_size=2} : f32[2] partial(mean)
      %part = jax.div(%1, 4.0:f32) : f32[2] partial(mean)
      %new = jax.add(%total, %part) : f32[2] partial(mean)
      return %new
    }
  %c_1 = all_reduce(%c) {reducer="mean", group_size=2} : f32[2] mirrored
  return %c_1
}

# title: a sum of bfloat16 in float32, subtracted, beside a carry that is not partial
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
  %0 = to_partial(%c0) {reducer="sum", group_size=2} : f32[2] partial(sum)
  %c, %n = scan(%0, 0:i32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[2] partial(sum), i32[] mirrored
    body(%total: f32[2] partial(sum), %count: i32[] mirrored, %row: bf16[2] per_replica) {
      %1 = to_partial(%row) {reducer="sum", group_size=2} : bf16[2] partial(sum)
      %wide = jax.convert_element_type(%1) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2] partial(sum)
      %new = jax.sub(%total, %wide) : f32[2] partial(sum)
      %next = jax.add(%count, 1:i32) : i32[] mirrored
      return %new, %next
    }
  %c_1 = all_reduce(%c) {reducer="sum", group_size=2} : f32[2] mirrored
  %out = jax.convert_element_type(%c_1) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2] mirrored
  return %out, %n
}

# title: left alone: a total that is read, a reduction that is used, other reducers
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
  %0 = to_partial(%c0) {reducer="mean", group_size=2} : f32[3] partial(mean)
  %1 = to_partial(0.0:f32) {reducer="mean", group_size=2} : f32[] partial(mean)
  %2 = to_partial(0:i32) {reducer="sum", group_size=2} : i32[] partial(sum)
  %c, %i, %w = scan(%0, %2, %1, %x, %n) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=3} : f32[3] partial(mean), i32[] partial(sum), f32[] partial(mean)
    body(%total: f32[3] partial(mean), %count: i32[] partial(sum), %wide: f32[] partial(mean), %row: f32[3] per_replica, %ns: i32[2] per_replica) {
      %g = jax.reduce_sum(%row) {axes=(0,), out_sharding=none} : f32[] per_replica
      %3 = to_partial(%g) {reducer="mean", group_size=2} : f32[] partial(mean)
      %all = jax.broadcast_in_dim(%3) {shape=(3,), broadcast_dimensions=(), sharding=none} : f32[3] partial(mean)
      %new = jax.add(%total, %all) : f32[3] partial(mean)
      %k = jax.reduce_sum(%ns) {axes=(0,), out_sharding=none} : i32[] per_replica
      %4 = to_partial(%k) {reducer="sum", group_size=2} : i32[] partial(sum)
      %twice = jax.mul(%4, 2:i32) {out_dtype=none} : i32[] partial(sum)
      %next = jax.sub(%count, %twice) : i32[] partial(sum)
      %small = jax.convert_element_type(%k) {new_dtype=dtype<f16>, weak_type=false, sharding=none} : f16[] per_replica
      %5 = to_partial(%small) {reducer="mean", group_size=2} : f16[] partial(mean)
      %single = jax.convert_element_type(%5) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[] partial(mean)
      %same = jax.convert_element_type(%wide) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[] partial(mean)
      %later = jax.add(%same, %single) : f32[] partial(mean)
      return %new, %next, %later
    }
  %i_1 = all_reduce(%i) {reducer="sum", group_size=2} : i32[] mirrored
  %c_1 = all_reduce(%c) {reducer="mean", group_size=2} : f32[3] mirrored
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
  %0 = to_partial(%c0) {reducer="mean", group_size=2} : f32[2] partial(mean)
  %1 = to_partial(%c0) {reducer="sum", group_size=2} : f32[2] partial(sum)
  %c, %d, %e = scan(%0, %0, %1, %n, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=3} : f32[2] partial(mean), f32[2] partial(mean), f32[2] partial(sum)
    body(%mean: f32[2] partial(mean), %average: f32[2] partial(mean), %total: f32[2] partial(sum), %count: f32[] mirrored, %row: f32[2] per_replica) {
      %2 = to_partial(%row) {reducer="mean", group_size=2} : f32[2] partial(mean)
      %difference = jax.sub(%2, %mean) : f32[2] partial(mean)
      %divisor = jax.broadcast_in_dim(%count) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
      %part = jax.div(%difference, %divisor) : f32[2] partial(mean)
      %next = jax.add(%mean, %part) : f32[2] partial(mean)
      %square = jax.mul(%row, %row) {out_dtype=none} : f32[2] per_replica
      %kept = jax.mul(%average, 0.9:f32) {out_dtype=none} : f32[2] partial(mean)
      %3 = to_partial(%square) {reducer="mean", group_size=2} : f32[2] partial(mean)
      %taken = jax.mul(%3, 0.1:f32) {out_dtype=none} : f32[2] partial(mean)
      %moved = jax.add(%kept, %taken) : f32[2] partial(mean)
      %4 = to_partial(1.0:f32) {reducer="mean", group_size=2} : f32[] partial(mean)
      %later = jax.add(%moved, %4) : f32[2] partial(mean)
      %sine = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %scaled = jax.mul(%total, %divisor) {out_dtype=none} : f32[2] partial(sum)
      %5 = to_partial(%sine) {reducer="sum", group_size=2} : f32[2] partial(sum)
      %more = jax.sub(%scaled, %5) : f32[2] partial(sum)
      return %next, %later, %more
    }
  %e_1 = all_reduce(%e) {reducer="sum", group_size=2} : f32[2] mirrored
  %c_1 = all_reduce(%c) {reducer="mean", group_size=2} : f32[2] mirrored
  %d_1 = all_reduce(%d) {reducer="mean", group_size=2} : f32[2] mirrored
  return %c_1, %d_1, %e_1
}

# title: left alone: a square, a carry that is read, a gradient of the carry; a constant beside a sum is no hindrance
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
  %0 = to_partial(%c0) {reducer="sum", group_size=2} : f32[2] partial(sum)
  %c, %d, %e, %f, %ys = scan(%c0, %c0, %0, %c0, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=4} : f32[2] mirrored, f32[2] mirrored, f32[2] partial(sum), f32[2] mirrored, f32[4,2] mirrored
    body(%c_in: f32[2] mirrored, %d_in: f32[2] mirrored, %e_in: f32[2] partial(sum), %f_in: f32[2] mirrored, %row: f32[2] per_replica) {
      %g = all_reduce(%row) {reducer="mean", group_size=2} : f32[2] mirrored
      %square = jax.mul(%c_in, %c_in) {out_dtype=none} : f32[2] mirrored
      %c_out = jax.add(%square, %g) : f32[2] mirrored
      %sine = jax.sin(%row) {accuracy=none} : f32[2] per_replica
      %h = all_reduce(%sine) {reducer="mean", group_size=2} : f32[2] mirrored
      %kept = jax.mul(%d_in, 0.5:f32) {out_dtype=none} : f32[2] mirrored
      %d_out = jax.add(%kept, %h) : f32[2] mirrored
      %cosine = jax.cos(%row) {accuracy=none} : f32[2] per_replica
      %half = jax.mul(%e_in, 0.5:f32) {out_dtype=none} : f32[2] partial(sum)
      %1 = to_partial(1.0:f32) {reducer="sum", group_size=2} : f32[] partial(sum)
      %plus = jax.add(%half, %1) : f32[2] partial(sum)
      %2 = to_partial(%cosine) {reducer="sum", group_size=2} : f32[2] partial(sum)
      %e_out = jax.add(%plus, %2) : f32[2] partial(sum)
      %own = jax.mul(%f_in, %row) {out_dtype=none} : f32[2] per_replica
      %slope = all_reduce(%own) {reducer="mean", group_size=2} : f32[2] mirrored
      %less = jax.mul(%f_in, 0.9:f32) {out_dtype=none} : f32[2] mirrored
      %f_out = jax.sub(%less, %slope) : f32[2] mirrored
      return %c_out, %d_out, %e_out, %f_out, %d_in
    }
  %e_1 = all_reduce(%e) {reducer="sum", group_size=2} : f32[2] mirrored
  return %c, %d, %e_1, %f, %ys
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
  %0 = to_partial(%c0) {reducer="sum", group_size=2} : f32[3] partial(sum)
  %1 = to_partial(%d0) {reducer="mean", group_size=2} : f32[4] partial(mean)
  %c, %d = scan(%0, %1, %x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[3] partial(sum), f32[4] partial(mean)
    body(%total: f32[3] partial(sum), %average: f32[4] partial(mean), %rows: f32[2,3] per_replica) {
      %2 = to_partial(%rows) {reducer="sum", group_size=2} : f32[2,3] partial(sum)
      %last = jax.slice(%2) {start_indices=(1, 0), limit_indices=(2, 3), strides=none} : f32[1,3] partial(sum)
      %row = jax.squeeze(%last) {dimensions=(0,)} : f32[3] partial(sum)
      %new = jax.add(%total, %row) : f32[3] partial(sum)
      %sum = jax.reduce_sum(%rows) {axes=(0,), out_sharding=none} : f32[3] per_replica
      %3 = to_partial(%sum) {reducer="mean", group_size=2} : f32[3] partial(mean)
      %4 = to_partial(1.0:f32) {reducer="mean", group_size=2} : f32[] partial(mean)
      %padded = jax.pad(%3, %4) {padding_config=((1, 0, 0),)} : f32[4] partial(mean)
      %old = jax.mul(%average, 0.5:f32) {out_dtype=none} : f32[4] partial(mean)
      %next = jax.add(%old, %padded) : f32[4] partial(mean)
      return %new, %next
    }
  %d_1 = all_reduce(%d) {reducer="mean", group_size=2} : f32[4] mirrored
  %c_1 = all_reduce(%c) {reducer="sum", group_size=2} : f32[3] mirrored
  return %c_1, %d_1
}

# title: two reductions that are added up, one scaled before and one after
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %half = jax.mul(0.5:f32, %a) {out_dtype=none} : f32[4] mirrored
  %quarter = jax.mul(%y, 0.25:f32) {out_dtype=none} : f32[4] per_replica
  %b = all_reduce(%quarter) {reducer="sum", group_size=2} : f32[4] mirrored
  %sum = jax.add(%half, %b) : f32[4] mirrored
  return %sum
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %0 = to_partial(%x) {reducer="sum", group_size=2} : f32[4] partial(sum)
  %half = jax.mul(0.5:f32, %0) {out_dtype=none} : f32[4] partial(sum)
  %quarter = jax.mul(%y, 0.25:f32) {out_dtype=none} : f32[4] per_replica
  %1 = to_partial(%quarter) {reducer="sum", group_size=2} : f32[4] partial(sum)
  %sum = jax.add(%half, %1) : f32[4] partial(sum)
  %sum_1 = all_reduce(%sum) {reducer="sum", group_size=2} : f32[4] mirrored
  return %sum_1
}

# title: a difference of two reductions in a loop
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica) {
  %c = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored
    body(%total: f32[] mirrored, %row: f32[2] per_replica) {
      %a = jax.reduce_sum(%row) {axes=(0,), out_sharding=none} : f32[] per_replica
      %b = jax.reduce_max(%row) {axes=(0,), out_sharding=none} : f32[] per_replica
      %p = all_reduce(%a) {reducer="mean", group_size=2} : f32[] mirrored
      %q = all_reduce(%b) {reducer="mean", group_size=2} : f32[] mirrored
      %r = jax.sub(%p, %q) : f32[] mirrored
      %new = jax.add(%total, %r) : f32[] mirrored
      return %new
    }
  return %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica) {
  %0 = to_partial(0.0:f32) {reducer="mean", group_size=2} : f32[] partial(mean)
  %c = scan(%0, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] partial(mean)
    body(%total: f32[] partial(mean), %row: f32[2] per_replica) {
      %a = jax.reduce_sum(%row) {axes=(0,), out_sharding=none} : f32[] per_replica
      %b = jax.reduce_max(%row) {axes=(0,), out_sharding=none} : f32[] per_replica
      %1 = to_partial(%a) {reducer="mean", group_size=2} : f32[] partial(mean)
      %2 = to_partial(%b) {reducer="mean", group_size=2} : f32[] partial(mean)
      %r = jax.sub(%1, %2) : f32[] partial(mean)
      %new = jax.add(%total, %r) : f32[] partial(mean)
      return %new
    }
  %c_1 = all_reduce(%c) {reducer="mean", group_size=2} : f32[] mirrored
  return %c_1
}

# title: a vector of which the sum is needed, a stack that is added up, and what is needed reduced besides
graph f on 2 replicas, stage spmd
(%x: f32[40000] per_replica, %rows: f32[4,40000] per_replica) {
  %all = all_reduce(%x) {reducer="sum", group_size=2} : f32[40000] mirrored
  %sum = jax.reduce_sum(%all) {axes=(0,), out_sharding=none} : f32[] mirrored
  %stack = scan(%rows) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[4,40000] mirrored
    body(%row: f32[40000] per_replica) {
      %mean = all_reduce(%row) {reducer="mean", group_size=2} : f32[40000] mirrored
      return %mean
    }
  %total = jax.reduce_sum(%stack) {axes=(0,), out_sharding=none} : f32[40000] mirrored
  %squares = jax.mul(%total, %total) {out_dtype=none} : f32[40000] mirrored
  %both = jax.add(%total, %squares) : f32[40000] mirrored
  return %sum, %both
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[40000] per_replica, %rows: f32[4,40000] per_replica) {
  %0 = to_partial(%x) {reducer="sum", group_size=2} : f32[40000] partial(sum)
  %sum = jax.reduce_sum(%0) {axes=(0,), out_sharding=none} : f32[] partial(sum)
  %sum_1 = all_reduce(%sum) {reducer="sum", group_size=2} : f32[] mirrored
  %stack = scan(%rows) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[4,40000] partial(mean)
    body(%row: f32[40000] per_replica) {
      %1 = to_partial(%row) {reducer="mean", group_size=2} : f32[40000] partial(mean)
      return %1
    }
  %total = jax.reduce_sum(%stack) {axes=(0,), out_sharding=none} : f32[40000] partial(mean)
  %total_1 = all_reduce(%total) {reducer="mean", group_size=2} : f32[40000] mirrored
  %squares = jax.mul(%total_1, %total_1) {out_dtype=none} : f32[40000] mirrored
  %both = jax.add(%total_1, %squares) : f32[40000] mirrored
  return %sum_1, %both
}
