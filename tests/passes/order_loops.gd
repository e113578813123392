# title: a loop that computes a loss runs before the loop that shares its weights
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica, %y: f32[3,2] per_replica) {
  %0 = jax.sin(%x) {accuracy=none} : f32[3,2] per_replica
  %1 = jax.cos(%y) {accuracy=none} : f32[3,2] per_replica
  %loss, %all = scan(0.0:f32, %0) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] per_replica, f32[3,2] per_replica
    body(%c: f32[] per_replica, %r: f32[2] per_replica) {
      %2 = jax.reduce_sum(%r) {axes=(0,), out_sharding=none} : f32[] per_replica
      %3 = jax.add(%c, %2) : f32[] per_replica
      return %3, %r
    }
  %g = scan(0.0:f32, %0, %1) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[] per_replica
    body(%d: f32[] per_replica, %s: f32[2] per_replica, %t: f32[2] per_replica) {
      %4 = jax.reduce_max(%s) {axes=(0,), out_sharding=none} : f32[] per_replica
      %5 = jax.mul(%d, %4) {out_dtype=none} : f32[] per_replica
      return %5
    }
  return per_replica %g, per_replica %loss, per_replica %all
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica, %y: f32[3,2] per_replica) {
  %0 = jax.sin(%x) {accuracy=none} : f32[3,2] per_replica
  %1 = jax.cos(%y) {accuracy=none} : f32[3,2] per_replica
  %loss, %all = scan(0.0:f32, %0) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] per_replica, f32[3,2] per_replica
    body(%c: f32[] per_replica, %r: f32[2] per_replica) {
      %2 = jax.reduce_sum(%r) {axes=(0,), out_sharding=none} : f32[] per_replica
      %3 = jax.add(%c, %2) : f32[] per_replica
      return %3, %r
    }
  %4, %5 = barrier(%loss, %1) : f32[] per_replica, f32[3,2] per_replica
  %g = scan(0.0:f32, %0, %5) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=1} : f32[] per_replica
    body(%d: f32[] per_replica, %s: f32[2] per_replica, %t: f32[2] per_replica) {
      %6 = jax.reduce_max(%s) {axes=(0,), out_sharding=none} : f32[] per_replica
      %7 = jax.mul(%d, %6) {out_dtype=none} : f32[] per_replica
      return %7
    }
  return per_replica %g, per_replica %4, per_replica %all
}

# title: nothing between loops that depend on each other, be it through other nodes
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica) {
  %a = scan(%x) {num_consts=0, num_carry=0, length=3, reverse=false, unroll=1} : f32[3,2] per_replica
    body(%r: f32[2] per_replica) {
      %0 = jax.sin(%r) {accuracy=none} : f32[2] per_replica
      return %0
    }
  %b = jax.cos(%a) {accuracy=none} : f32[3,2] per_replica
  %c = scan(%b) {num_consts=0, num_carry=0, length=3, reverse=false, unroll=1} : f32[3,2] per_replica
    body(%s: f32[2] per_replica) {
      %1 = jax.cos(%s) {accuracy=none} : f32[2] per_replica
      return %1
    }
  return per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3,2] per_replica) {
  %a = scan(%x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[3,2] per_replica
    body(%r: f32[2] per_replica) {
      %0 = jax.sin(%r) {accuracy=none} : f32[2] per_replica
      return %0
    }
  %b = jax.cos(%a) {accuracy=none} : f32[3,2] per_replica
  %c = scan(%b) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[3,2] per_replica
    body(%s: f32[2] per_replica) {
      %1 = jax.cos(%s) {accuracy=none} : f32[2] per_replica
      return %1
    }
  return per_replica %c
}

# title: inside of a loop; what is carried through as it is comes from no step, and a constant waits for none
graph f on 2 replicas, stage spmd
(%xs: f32[2,3,2] per_replica) {
  %y, %z = scan(%xs) {num_consts=0, num_carry=0, length=2, reverse=false, unroll=1} : f32[2,3] per_replica, f32[2,3,2] per_replica
    body(%x: f32[3,2] per_replica) {
      %0 = constant() {value=array<i32[3]: 0, 1, 2>} : i32[3] mirrored
      %one, %a = scan(1.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[3] per_replica
        body(%c: f32[] mirrored, %r: f32[2] per_replica) {
          %1 = jax.reduce_sum(%r) {axes=(0,), out_sharding=none} : f32[] per_replica
          return %c, %1
        }
      %b = scan(%x, %0) {num_consts=1, num_carry=0, length=3, reverse=false, unroll=1} : f32[3,2] per_replica
        body(%s: f32[3,2] per_replica, %i: i32[] mirrored) {
          %2 = take_step(%s, %i) : f32[2] per_replica
          return %2
        }
      %m = jax.mul(%a, %one) {out_dtype=none} : f32[3] per_replica
      return %m, %b
    }
  return per_replica %y, per_replica %z
}
-->
graph f on 2 replicas, stage spmd
(%xs: f32[2,3,2] per_replica) {
  %y, %z = scan(%xs) {length=2, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[2,3] per_replica, f32[2,3,2] per_replica
    body(%x: f32[3,2] per_replica) {
      %0 = constant() {value=array<i32[3]: 0, 1, 2>} : i32[3] mirrored
      %one, %a = scan(1.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] mirrored, f32[3] per_replica
        body(%c: f32[] mirrored, %r: f32[2] per_replica) {
          %1 = jax.reduce_sum(%r) {axes=(0,), out_sharding=none} : f32[] per_replica
          return %c, %1
        }
      %2, %3 = barrier(%a, %x) : f32[3] per_replica, f32[3,2] per_replica
      %b = scan(%3, %0) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=0} : f32[3,2] per_replica
        body(%s: f32[3,2] per_replica, %i: i32[] mirrored) {
          %4 = take_step(%s, %i) : f32[2] per_replica
          return %4
        }
      %m = jax.mul(%2, %one) {out_dtype=none} : f32[3] per_replica
      return %m, %b
    }
  return per_replica %y, per_replica %z
}
