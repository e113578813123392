# title: the loops forward and backward over layers, whose weights and residuals are stacks
graph f on 2 replicas, stage spmd
(%w: f32[3,2,2] mirrored, %x: f32[2] per_replica) {
  %last, %kept = scan(%x, %w) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[2] per_replica, f32[3,2] per_replica
    body(%a: f32[2] per_replica, %m: f32[2,2] mirrored) {
      %0 = jax.dot_general(%a, %m) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      %1 = jax.tanh(%0) {accuracy=none} : f32[2] per_replica
      return %1, %1
    }
  %g = scan(%last, %w, %kept) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[2] per_replica
    body(%d: f32[2] per_replica, %n: f32[2,2] mirrored, %h: f32[2] per_replica) {
      %2 = jax.mul(%d, %h) {out_dtype=none} : f32[2] per_replica
      %3 = jax.dot_general(%2, %n) {dimension_numbers=(((0,), (1,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      return %3
    }
  return per_replica %g
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2,2] mirrored, %x: f32[2] per_replica) {
  %last, %kept = scan(%x, %w) {length=3, reverse=false, unroll=3, num_consts=0, num_carry=1} : f32[2] per_replica, f32[3,2] per_replica
    body(%a: f32[2] per_replica, %m: f32[2,2] mirrored) {
      %0 = jax.dot_general(%a, %m) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      %1 = jax.tanh(%0) {accuracy=none} : f32[2] per_replica
      return %1, %1
    }
  %g = scan(%last, %w, %kept) {length=3, reverse=true, unroll=3, num_consts=0, num_carry=1} : f32[2] per_replica
    body(%d: f32[2] per_replica, %n: f32[2,2] mirrored, %h: f32[2] per_replica) {
      %2 = jax.mul(%d, %h) {out_dtype=none} : f32[2] per_replica
      %3 = jax.dot_general(%2, %n) {dimension_numbers=(((0,), (1,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      return %3
    }
  return per_replica %g
}

# title: not the backward loop that computes values of the forward loop again
graph f on 2 replicas, stage spmd
(%w: f32[3,2,2] mirrored, %x: f32[2] per_replica) {
  %last, %kept = scan(%x, %w) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[2] per_replica, f32[3,2] per_replica
    body(%a: f32[2] per_replica, %m: f32[2,2] mirrored) {
      %0 = jax.dot_general(%a, %m) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      %1 = jax.tanh(%0) {accuracy=none} : f32[2] per_replica
      return %1, %a
    }
  %g = scan(%last, %w, %kept) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[2] per_replica
    body(%d: f32[2] per_replica, %n: f32[2,2] mirrored, %b: f32[2] per_replica) {
      %2 = jax.dot_general(%b, %n) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      %3 = jax.tanh(%2) {accuracy=none} : f32[2] per_replica
      %4 = jax.mul(%d, %3) {out_dtype=none} : f32[2] per_replica
      %5 = jax.dot_general(%4, %n) {dimension_numbers=(((0,), (1,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      return %5
    }
  return per_replica %g
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2,2] mirrored, %x: f32[2] per_replica) {
  %last, %kept = scan(%x, %w) {length=3, reverse=false, unroll=3, num_consts=0, num_carry=1} : f32[2] per_replica, f32[3,2] per_replica
    body(%a: f32[2] per_replica, %m: f32[2,2] mirrored) {
      %0 = jax.dot_general(%a, %m) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      %1 = jax.tanh(%0) {accuracy=none} : f32[2] per_replica
      return %1, %a
    }
  %g = scan(%last, %w, %kept) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=1} : f32[2] per_replica
    body(%d: f32[2] per_replica, %n: f32[2,2] mirrored, %b: f32[2] per_replica) {
      %2 = jax.dot_general(%b, %n) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      %3 = jax.tanh(%2) {accuracy=none} : f32[2] per_replica
      %4 = jax.mul(%d, %3) {out_dtype=none} : f32[2] per_replica
      %5 = jax.dot_general(%4, %n) {dimension_numbers=(((0,), (1,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      return %5
    }
  return per_replica %g
}

# title: not over time, where the weights are constants; not if the user unrolls, or for many iterations; not training steps
graph f on 2 replicas, stage spmd
(%w: f32[2,2] mirrored, %x: f32[3,2] per_replica, %y: f32[6,2] per_replica) {
  %a = scan(%w, %x) {num_consts=1, num_carry=0, length=3, reverse=false, unroll=1} : f32[3,2] per_replica
    body(%m: f32[2,2] mirrored, %r: f32[2] per_replica) {
      %0 = jax.dot_general(%r, %m) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      return %0
    }
  %b = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=2} : f32[] per_replica
    body(%d: f32[] per_replica, %s: f32[2] per_replica) {
      %1 = jax.mul(%s, %d) {out_dtype=none} : f32[2] per_replica
      %2 = jax.reduce_max(%1) {axes=(0,), out_sharding=none} : f32[] per_replica
      return %2
    }
  %c = scan(0.0:f32, %y) {num_consts=0, num_carry=1, length=6, reverse=false, unroll=1} : f32[] per_replica
    body(%g: f32[] per_replica, %t: f32[2] per_replica) {
      %3 = jax.mul(%t, %g) {out_dtype=none} : f32[2] per_replica
      %4 = jax.reduce_max(%3) {axes=(0,), out_sharding=none} : f32[] per_replica
      return %4
    }
  %e = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1, steps=true} : f32[] per_replica
    body(%h: f32[] per_replica, %u: f32[2] per_replica) {
      %5 = jax.mul(%u, %h) {out_dtype=none} : f32[2] per_replica
      %6 = jax.reduce_max(%5) {axes=(0,), out_sharding=none} : f32[] per_replica
      return %6
    }
  return per_replica %a, per_replica %b, per_replica %c, per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,2] mirrored, %x: f32[3,2] per_replica, %y: f32[6,2] per_replica) {
  %a = scan(%w, %x) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=0} : f32[3,2] per_replica
    body(%m: f32[2,2] mirrored, %r: f32[2] per_replica) {
      %0 = jax.dot_general(%r, %m) {dimension_numbers=(((0,), (0,)), ((), ())), out_sharding=none, precision=none, preferred_element_type=dtype<f32>} : f32[2] per_replica
      return %0
    }
  %b = scan(0.0:f32, %x) {length=3, reverse=false, unroll=2, num_consts=0, num_carry=1} : f32[] per_replica
    body(%d: f32[] per_replica, %s: f32[2] per_replica) {
      %1 = jax.mul(%s, %d) {out_dtype=none} : f32[2] per_replica
      %2 = jax.reduce_max(%1) {axes=(0,), out_sharding=none} : f32[] per_replica
      return %2
    }
  %c = scan(0.0:f32, %y) {length=6, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] per_replica
    body(%g: f32[] per_replica, %t: f32[2] per_replica) {
      %3 = jax.mul(%t, %g) {out_dtype=none} : f32[2] per_replica
      %4 = jax.reduce_max(%3) {axes=(0,), out_sharding=none} : f32[] per_replica
      return %4
    }
  %e = scan(0.0:f32, %x) {length=3, reverse=false, unroll=1, steps=true, num_consts=0, num_carry=1} : f32[] per_replica
    body(%h: f32[] per_replica, %u: f32[2] per_replica) {
      %5 = jax.mul(%u, %h) {out_dtype=none} : f32[2] per_replica
      %6 = jax.reduce_max(%5) {axes=(0,), out_sharding=none} : f32[] per_replica
      return %6
    }
  return per_replica %a, per_replica %b, per_replica %c, per_replica %e
}

# title: in a loop that stays, and not around a loop whose operations would be too many
graph f on 2 replicas, stage spmd
(%y: f32[6,3,2] per_replica, %z: f32[4,4,2] per_replica) {
  %a = scan(0.0:f32, %y) {num_consts=0, num_carry=1, length=6, reverse=false, unroll=1} : f32[] per_replica
    body(%e: f32[] per_replica, %r: f32[3,2] per_replica) {
      %b = scan(%e, %r) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] per_replica
        body(%f: f32[] per_replica, %s: f32[2] per_replica) {
          %0 = jax.mul(%s, %f) {out_dtype=none} : f32[2] per_replica
          %1 = jax.reduce_max(%0) {axes=(0,), out_sharding=none} : f32[] per_replica
          return %1
        }
      return %b
    }
  %c = scan(1.0:f32, %z) {num_consts=0, num_carry=1, length=4, reverse=false, unroll=1} : f32[] per_replica
    body(%g: f32[] per_replica, %t: f32[4,2] per_replica) {
      %d = scan(%g, %t) {num_consts=0, num_carry=1, length=4, reverse=false, unroll=1} : f32[] per_replica
        body(%h: f32[] per_replica, %u: f32[2] per_replica) {
          %2 = jax.mul(%u, %h) {out_dtype=none} : f32[2] per_replica
          %3 = jax.reduce_max(%2) {axes=(0,), out_sharding=none} : f32[] per_replica
          return %3
        }
      return %d
    }
  return per_replica %a, per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%y: f32[6,3,2] per_replica, %z: f32[4,4,2] per_replica) {
  %a = scan(0.0:f32, %y) {length=6, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] per_replica
    body(%e: f32[] per_replica, %r: f32[3,2] per_replica) {
      %b = scan(%e, %r) {length=3, reverse=false, unroll=3, num_consts=0, num_carry=1} : f32[] per_replica
        body(%f: f32[] per_replica, %s: f32[2] per_replica) {
          %0 = jax.mul(%s, %f) {out_dtype=none} : f32[2] per_replica
          %1 = jax.reduce_max(%0) {axes=(0,), out_sharding=none} : f32[] per_replica
          return %1
        }
      return %b
    }
  %c = scan(1.0:f32, %z) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] per_replica
    body(%g: f32[] per_replica, %t: f32[4,2] per_replica) {
      %d = scan(%g, %t) {length=4, reverse=false, unroll=4, num_consts=0, num_carry=1} : f32[] per_replica
        body(%h: f32[] per_replica, %u: f32[2] per_replica) {
          %2 = jax.mul(%u, %h) {out_dtype=none} : f32[2] per_replica
          %3 = jax.reduce_max(%2) {axes=(0,), out_sharding=none} : f32[] per_replica
          return %3
        }
      return %d
    }
  return per_replica %a, per_replica %c
}

# title: not where iterations do not depend on each other: over rows, and a sum of what they compute
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica) {
  %a = scan(%x) {num_consts=0, num_carry=0, length=3, reverse=false, unroll=1} : f32[3,2] per_replica
    body(%r: f32[2] per_replica) {
      %0 = jax.sin(%r) {accuracy=none} : f32[2] per_replica
      return %0
    }
  %b = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] per_replica
    body(%c: f32[] per_replica, %s: f32[2] per_replica) {
      %1 = jax.sin(%s) {accuracy=none} : f32[2] per_replica
      %2 = jax.reduce_sum(%1) {axes=(0,), out_sharding=none} : f32[] per_replica
      %3 = jax.add(%c, %2) : f32[] per_replica
      return %3
    }
  return per_replica %a, per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica) {
  %a = scan(%x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[3,2] per_replica
    body(%r: f32[2] per_replica) {
      %0 = jax.sin(%r) {accuracy=none} : f32[2] per_replica
      return %0
    }
  %b = scan(0.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] per_replica
    body(%c: f32[] per_replica, %s: f32[2] per_replica) {
      %1 = jax.sin(%s) {accuracy=none} : f32[2] per_replica
      %2 = jax.reduce_sum(%1) {axes=(0,), out_sharding=none} : f32[] per_replica
      %3 = jax.add(%c, %2) : f32[] per_replica
      return %3
    }
  return per_replica %a, per_replica %b
}
