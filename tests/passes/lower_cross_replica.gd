# title: reduce and gather become collectives, to_replicas nothing
graph f on 2 replicas, stage placed
(%x: f32[3] per_replica, %w: f32[3] mirrored) {
  %spread = to_replicas(%w) {group_size=2} : f32[3] mirrored
  %y = jax.mul(%x, %spread) {out_dtype=none} : f32[3] per_replica
  %mean = reduce(%y) {reducer="mean", group_size=2} : f32[3] mirrored
  %all = gather(%y) {axis=0, group_size=2} : f32[6] mirrored
  return %mean, %all
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica, %w: f32[3] mirrored) {
  %y = jax.mul(%x, %w) {out_dtype=none} : f32[3] per_replica
  %mean = all_reduce(%y) {reducer="mean", group_size=2} : f32[3] mirrored
  %all = all_gather(%y) {axis=0, group_size=2} : f32[6] mirrored
  return %mean, %all
}

# title: inside a loop as well
graph f on 2 replicas, stage placed
(%x: f32[3] per_replica) {
  %c = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored
    body(%c_in: f32[] mirrored, %row: f32[] per_replica) {
      %sum = reduce(%row) {reducer="sum", group_size=2} : f32[] mirrored
      %next = jax.add(%c_in, %sum) : f32[] mirrored
      return %next
    }
  return %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %c = scan(0.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] mirrored
    body(%c_in: f32[] mirrored, %row: f32[] per_replica) {
      %sum = all_reduce(%row) {reducer="sum", group_size=2} : f32[] mirrored
      %next = jax.add(%c_in, %sum) : f32[] mirrored
      return %next
    }
  return %c
}
