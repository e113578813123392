# title: a mean, and a sum that begins with a number, are scattered in each step
graph f on 2 replicas, stage spmd
(%c0: f32[4] mirrored, %x: f32[3,4] per_replica) {
  %z = select_replica(%c0) {replica=0, group_size=2} : f32[4] per_replica
  %a, %b, %n = scan(%c0, %z, 0:i32, %x) {num_consts=0, num_carry=3, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[4] per_replica, i32[] mirrored
    body(%p: f32[4] per_replica, %q: f32[4] per_replica, %i: i32[] mirrored, %row: f32[4] per_replica) {
      %g = jax.sin(%row) {accuracy=none} : f32[4] per_replica
      %p1 = jax.add(%p, %g) : f32[4] per_replica
      %q1 = jax.sub(%q, %row) : f32[4] per_replica
      %next = jax.add(%i, 1:i32) : i32[] mirrored
      return %p1, %q1, %next
    }
  %s = reduce_scatter(%a) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  %t = reduce_scatter(%b) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
  return per_replica %s, per_replica %t, %n
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[4] mirrored, %x: f32[3,4] per_replica) {
  %z = select_replica(%c0) {replica=0, group_size=2} : f32[4] per_replica
  %0 = own_slice(%c0) {group_size=2, axis=0} : f32[2] sharded(0)
  %1 = own_slice(%c0) {group_size=2, axis=0} : f32[2] sharded(0)
  %a, %b, %n = scan(%0, %1, 0:i32, %x) {num_consts=0, num_carry=3, length=3, reverse=false, unroll=1} : f32[2] sharded(0), f32[2] sharded(0), i32[] mirrored
    body(%p: f32[2] sharded(0), %q: f32[2] sharded(0), %i: i32[] mirrored, %row: f32[4] per_replica) {
      %g = jax.sin(%row) {accuracy=none} : f32[4] per_replica
      %2 = reduce_scatter(%g) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
      %p1 = jax.add(%p, %2) : f32[2] sharded(0)
      %3 = reduce_scatter(%row) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
      %q1 = jax.sub(%q, %3) : f32[2] sharded(0)
      %next = jax.add(%i, 1:i32) : i32[] mirrored
      return %p1, %q1, %next
    }
  return per_replica %a, per_replica %b, %n
}

# title: a carry that the body reads, and one that is used in full too, stay
graph f on 2 replicas, stage spmd
(%c0: f32[4] mirrored, %x: f32[3,4] per_replica) {
  %a, %b, %ys = scan(%c0, %c0, %x) {num_consts=0, num_carry=2, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[4] per_replica, f32[3,4] per_replica
    body(%p: f32[4] per_replica, %q: f32[4] per_replica, %row: f32[4] per_replica) {
      %p1 = jax.add(%p, %row) : f32[4] per_replica
      %y = jax.sin(%p) {accuracy=none} : f32[4] per_replica
      %q1 = jax.add(%q, %row) : f32[4] per_replica
      return %p1, %q1, %y
    }
  %s = reduce_scatter(%a) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  %t = reduce_scatter(%b) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  return per_replica %s, per_replica %t, per_replica %b, per_replica %ys
}
-->
graph f on 2 replicas, stage spmd
(%c0: f32[4] mirrored, %x: f32[3,4] per_replica) {
  %a, %b, %ys = scan(%c0, %c0, %x) {num_consts=0, num_carry=2, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[4] per_replica, f32[3,4] per_replica
    body(%p: f32[4] per_replica, %q: f32[4] per_replica, %row: f32[4] per_replica) {
      %p1 = jax.add(%p, %row) : f32[4] per_replica
      %y = jax.sin(%p) {accuracy=none} : f32[4] per_replica
      %q1 = jax.add(%q, %row) : f32[4] per_replica
      return %p1, %q1, %y
    }
  %s = reduce_scatter(%a) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  %t = reduce_scatter(%b) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  return per_replica %s, per_replica %t, per_replica %b, per_replica %ys
}
