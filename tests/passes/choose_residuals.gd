# title: a recomputed value is stacked, and a stacked one is recomputed from it
graph f on 2 replicas, stage logical
(%w: f32[3,4] mirrored, %x: f32[4] per_replica) {
  %y, %bs, %hs = scan(%x, %w) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] per_replica, f32[3,4] per_replica
    body(%h: f32[4] per_replica, %slice: f32[4] mirrored) {
      %s = jax.sin(%h) {accuracy=none} : f32[4] per_replica
      %a = jax.name(%s) {name="a"} : f32[4] per_replica
      %b = jax.mul(%a, %slice) {out_dtype=none} : f32[4] per_replica
      %c = jax.name(%b) {name="b"} : f32[4] per_replica
      return %c, %c, %h
    }
  %g, %gs = scan(%y, %bs, %hs) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%d: f32[4] per_replica, %b: f32[4] per_replica, %h: f32[4] per_replica) {
      %h_1 = jax.optimization_barrier(%h) : f32[4] per_replica
      %s = jax.sin(%h_1) {accuracy=none} : f32[4] per_replica
      %a = jax.name(%s) {name="a"} : f32[4] per_replica
      %da = jax.mul(%d, %a) {out_dtype=none} : f32[4] per_replica
      %db = jax.mul(%da, %b) {out_dtype=none} : f32[4] per_replica
      return %db, %da
    }
  return per_replica %g, per_replica %gs
}
-->
graph f on 2 replicas, stage logical
(%w: f32[3,4] mirrored, %x: f32[4] per_replica) {
  %0, %1, %2, %3 = scan(%x, %w) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[3,4] per_replica, f32[3,4] per_replica, f32[3,4] per_replica
    body(%h: f32[4] per_replica, %slice: f32[4] mirrored) {
      %s = jax.sin(%h) {accuracy=none} : f32[4] per_replica
      %a = jax.name(%s) {name="a"} : f32[4] per_replica
      %b = jax.mul(%a, %slice) {out_dtype=none} : f32[4] per_replica
      %c = jax.name(%b) {name="b"} : f32[4] per_replica
      return %c, %c, %h, %s
    }
  %g, %gs = scan(%0, %3, %w) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%d: f32[4] per_replica, %s_1: f32[4] per_replica, %4: f32[4] mirrored) {
      %da = jax.mul(%d, %s_1) {out_dtype=none} : f32[4] per_replica
      %b_1 = jax.mul(%s_1, %4) {out_dtype=none} : f32[4] per_replica
      %db = jax.mul(%da, %b_1) {out_dtype=none} : f32[4] per_replica
      return %db, %da
    }
  return per_replica %g, per_replica %gs
}

# title: the forward loop computes a value of the backward loop, and stacks a carry to recompute from
# not idempotent: the node that had the name a is gone
graph f on 2 replicas, stage logical
(%w: f32[4] mirrored, %x: f32[4] per_replica) {
  %y, %bs, %hs = scan(%w, %x) {num_consts=1, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] per_replica, f32[3,4] per_replica
    body(%v: f32[4] mirrored, %h: f32[4] per_replica) {
      %b = jax.mul(%h, %v) {out_dtype=none} : f32[4] per_replica
      %c = jax.name(%b) {name="b"} : f32[4] per_replica
      %n = jax.sin(%c) {accuracy=none} : f32[4] per_replica
      return %n, %b, %h
    }
  %g = scan(%w, %y, %bs, %hs) {num_consts=1, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica
    body(%v: f32[4] mirrored, %d: f32[4] per_replica, %b: f32[4] per_replica, %h: f32[4] per_replica) {
      %e = jax.cos(%h) {accuracy=none} : f32[4] per_replica
      %a = jax.name(%e) {name="a"} : f32[4] per_replica
      %da = jax.mul(%d, %a) {out_dtype=none} : f32[4] per_replica
      %db = jax.mul(%da, %b) {out_dtype=none} : f32[4] per_replica
      return %db
    }
  return per_replica %g
}
-->
graph f on 2 replicas, stage logical
(%w: f32[4] mirrored, %x: f32[4] per_replica) {
  %0, %1, %2, %3 = scan(%w, %x) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=1} : f32[4] per_replica, f32[3,4] per_replica, f32[3,4] per_replica, f32[3,4] per_replica
    body(%v: f32[4] mirrored, %h: f32[4] per_replica) {
      %b = jax.mul(%h, %v) {out_dtype=none} : f32[4] per_replica
      %c = jax.name(%b) {name="b"} : f32[4] per_replica
      %n = jax.sin(%c) {accuracy=none} : f32[4] per_replica
      %e = jax.cos(%h) {accuracy=none} : f32[4] per_replica
      return %n, %b, %h, %e
    }
  %g = scan(%w, %0, %2, %3) {length=3, reverse=true, unroll=1, num_consts=1, num_carry=1} : f32[4] per_replica
    body(%v_1: f32[4] mirrored, %d: f32[4] per_replica, %h_1: f32[4] per_replica, %e_1: f32[4] per_replica) {
      %da = jax.mul(%d, %e_1) {out_dtype=none} : f32[4] per_replica
      %b_1 = jax.mul(%h_1, %v_1) {out_dtype=none} : f32[4] per_replica
      %db = jax.mul(%da, %b_1) {out_dtype=none} : f32[4] per_replica
      return %db
    }
  return per_replica %g
}

# title: a loop stands in both bodies, and the one with further results takes the place of the other
# not idempotent: the node that had the name a is gone
graph f on 2 replicas, stage logical
(%w: f32[2,4] mirrored, %x: f32[4] per_replica) {
  %y, %hs = scan(%w, %x) {num_consts=1, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%v: f32[2,4] mirrored, %h: f32[4] per_replica) {
      %a = scan(%h, %v) {num_consts=0, num_carry=1, length=2, reverse=false, unroll=1} : f32[4] per_replica
        body(%c: f32[4] per_replica, %row: f32[4] mirrored) {
          %m = jax.mul(%c, %row) {out_dtype=none} : f32[4] per_replica
          return %m
        }
      return %a, %h
    }
  %g = scan(%w, %y, %hs) {num_consts=1, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica
    body(%v: f32[2,4] mirrored, %d: f32[4] per_replica, %h: f32[4] per_replica) {
      %a, %cs = scan(%h, %v) {num_consts=0, num_carry=1, length=2, reverse=false, unroll=1} : f32[4] per_replica, f32[2,4] per_replica
        body(%c: f32[4] per_replica, %row: f32[4] mirrored) {
          %n = jax.mul(%c, %row) {out_dtype=none} : f32[4] per_replica
          %s = jax.sin(%c) {accuracy=none} : f32[4] per_replica
          return %n, %s
        }
      %b = jax.name(%a) {name="b"} : f32[4] per_replica
      %sum = jax.reduce_sum(%cs) {axes=(0), out_sharding=none} : f32[4] per_replica
      %sums = jax.name(%sum) {name="a"} : f32[4] per_replica
      %da = jax.mul(%d, %b) {out_dtype=none} : f32[4] per_replica
      %db = jax.mul(%da, %sums) {out_dtype=none} : f32[4] per_replica
      return %db
    }
  return per_replica %g
}
-->
graph f on 2 replicas, stage logical
(%w: f32[2,4] mirrored, %x: f32[4] per_replica) {
  %0, %1, %2 = scan(%w, %x) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=1} : f32[4] per_replica, f32[3,4] per_replica, f32[3,4] per_replica
    body(%v: f32[2,4] mirrored, %h: f32[4] per_replica) {
      %a, %a_1 = scan(%h, %v) {length=2, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[2,4] per_replica
        body(%c: f32[4] per_replica, %row: f32[4] mirrored) {
          %n = jax.mul(%c, %row) {out_dtype=none} : f32[4] per_replica
          %s = jax.sin(%c) {accuracy=none} : f32[4] per_replica
          return %n, %s
        }
      %sum = jax.reduce_sum(%a_1) {axes=(0,), out_sharding=none} : f32[4] per_replica
      return %a, %h, %sum
    }
  %g = scan(%w, %0, %1, %2) {length=3, reverse=true, unroll=1, num_consts=1, num_carry=1} : f32[4] per_replica
    body(%v_1: f32[2,4] mirrored, %d: f32[4] per_replica, %h_1: f32[4] per_replica, %sum_1: f32[4] per_replica) {
      %a_2, %a_3 = scan(%h_1, %v_1) {length=2, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[2,4] per_replica
        body(%c_1: f32[4] per_replica, %row_1: f32[4] mirrored) {
          %n_1 = jax.mul(%c_1, %row_1) {out_dtype=none} : f32[4] per_replica
          %s_1 = jax.sin(%c_1) {accuracy=none} : f32[4] per_replica
          return %n_1, %s_1
        }
      %da = jax.mul(%d, %a_2) {out_dtype=none} : f32[4] per_replica
      %db = jax.mul(%da, %sum_1) {out_dtype=none} : f32[4] per_replica
      return %db
    }
  return per_replica %g
}
