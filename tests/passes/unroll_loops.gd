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
  %b = scan(%x) {num_consts=0, num_carry=0, length=3, reverse=false, unroll=2} : f32[3,2] per_replica
    body(%s: f32[2] per_replica) {
      %1 = jax.sin(%s) {accuracy=none} : f32[2] per_replica
      return %1
    }
  %c = scan(%y) {num_consts=0, num_carry=0, length=6, reverse=false, unroll=1} : f32[6,2] per_replica
    body(%t: f32[2] per_replica) {
      %2 = jax.sin(%t) {accuracy=none} : f32[2] per_replica
      return %2
    }
  %e = scan(%x) {num_consts=0, num_carry=0, length=3, reverse=false, unroll=1, steps=true} : f32[3,2] per_replica
    body(%u: f32[2] per_replica) {
      %3 = jax.sin(%u) {accuracy=none} : f32[2] per_replica
      return %3
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
  %b = scan(%x) {length=3, reverse=false, unroll=2, num_consts=0, num_carry=0} : f32[3,2] per_replica
    body(%s: f32[2] per_replica) {
      %1 = jax.sin(%s) {accuracy=none} : f32[2] per_replica
      return %1
    }
  %c = scan(%y) {length=6, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[6,2] per_replica
    body(%t: f32[2] per_replica) {
      %2 = jax.sin(%t) {accuracy=none} : f32[2] per_replica
      return %2
    }
  %e = scan(%x) {length=3, reverse=false, unroll=1, steps=true, num_consts=0, num_carry=0} : f32[3,2] per_replica
    body(%u: f32[2] per_replica) {
      %3 = jax.sin(%u) {accuracy=none} : f32[2] per_replica
      return %3
    }
  return per_replica %a, per_replica %b, per_replica %c, per_replica %e
}

# title: in a loop that stays, and not around a loop whose operations would be too many
graph f on 2 replicas, stage spmd
(%y: f32[6,3,2] per_replica, %z: f32[4,4,2] per_replica) {
  %a = scan(%y) {num_consts=0, num_carry=0, length=6, reverse=false, unroll=1} : f32[6,3,2] per_replica
    body(%r: f32[3,2] per_replica) {
      %b = scan(%r) {num_consts=0, num_carry=0, length=3, reverse=false, unroll=1} : f32[3,2] per_replica
        body(%s: f32[2] per_replica) {
          %0 = jax.sin(%s) {accuracy=none} : f32[2] per_replica
          return %0
        }
      return %b
    }
  %c = scan(%z) {num_consts=0, num_carry=0, length=4, reverse=false, unroll=1} : f32[4,4,2] per_replica
    body(%t: f32[4,2] per_replica) {
      %d = scan(%t) {num_consts=0, num_carry=0, length=4, reverse=false, unroll=1} : f32[4,2] per_replica
        body(%u: f32[2] per_replica) {
          %1 = jax.sin(%u) {accuracy=none} : f32[2] per_replica
          return %1
        }
      return %d
    }
  return per_replica %a, per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%y: f32[6,3,2] per_replica, %z: f32[4,4,2] per_replica) {
  %a = scan(%y) {length=6, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[6,3,2] per_replica
    body(%r: f32[3,2] per_replica) {
      %b = scan(%r) {length=3, reverse=false, unroll=3, num_consts=0, num_carry=0} : f32[3,2] per_replica
        body(%s: f32[2] per_replica) {
          %0 = jax.sin(%s) {accuracy=none} : f32[2] per_replica
          return %0
        }
      return %b
    }
  %c = scan(%z) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[4,4,2] per_replica
    body(%t: f32[4,2] per_replica) {
      %d = scan(%t) {length=4, reverse=false, unroll=4, num_consts=0, num_carry=0} : f32[4,2] per_replica
        body(%u: f32[2] per_replica) {
          %1 = jax.sin(%u) {accuracy=none} : f32[2] per_replica
          return %1
        }
      return %d
    }
  return per_replica %a, per_replica %c
}
