# title: the gradient that is ready first is reduced first
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %w: f32[4] mirrored) {
  %b = jax.mul(%x, %w) {out_dtype=none} : f32[4] per_replica
  %a = jax.mul(%b, %w) {out_dtype=none} : f32[4] per_replica
  %loss = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %ra = all_reduce(%a) {reducer="sum", group_size=2} : f32[4] mirrored
  %rb = all_reduce(%b) {reducer="sum", group_size=2} : f32[4] mirrored
  %twice = all_reduce(%rb) {reducer="sum", group_size=2} : f32[4] mirrored
  return %ra, %rb, %loss, %twice
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %w: f32[4] mirrored) {
  %loss = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %b = jax.mul(%x, %w) {out_dtype=none} : f32[4] per_replica
  %rb = all_reduce(%b) {reducer="sum", group_size=2} : f32[4] mirrored
  %twice = all_reduce(%rb) {reducer="sum", group_size=2} : f32[4] mirrored
  %a = jax.mul(%b, %w) {out_dtype=none} : f32[4] per_replica
  %ra = all_reduce(%a) {reducer="sum", group_size=2} : f32[4] mirrored
  return %ra, %rb, %loss, %twice
}

# title: inside a loop too
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %c = scan(%x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica
    body(%carry: f32[4] per_replica) {
      %s = jax.sin(%carry) {accuracy=none} : f32[4] per_replica
      %t = jax.cos(%s) {accuracy=none} : f32[4] per_replica
      %r = all_reduce(%s) {reducer="sum", group_size=2} : f32[4] mirrored
      %new = jax.add(%t, %r) : f32[4] per_replica
      return %new
    }
  return per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %c = scan(%x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica
    body(%carry: f32[4] per_replica) {
      %s = jax.sin(%carry) {accuracy=none} : f32[4] per_replica
      %r = all_reduce(%s) {reducer="sum", group_size=2} : f32[4] mirrored
      %t = jax.cos(%s) {accuracy=none} : f32[4] per_replica
      %new = jax.add(%t, %r) : f32[4] per_replica
      return %new
    }
  return per_replica %c
}
