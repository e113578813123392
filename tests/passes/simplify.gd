# title: one step makes the next possible
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.div(2.0:f32, 2.0:f32) : f32[] mirrored
  %b = jax.mul(%x, %a) : f32[4] per_replica
  %c = jax.floor(%b) : f32[4] per_replica
  %d = jax.floor(%x) : f32[4] per_replica
  %e = jax.select_n(true:bool, %x, %c) : f32[4] per_replica
  %f = jax.max(%d, %e) : f32[4] per_replica
  return per_replica %f
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %c = jax.floor(%x) : f32[4] per_replica
  return per_replica %c
}

# title: the sum of weights that are all one
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = all_reduce(1.0:f32) {reducer="sum", group_size=2} : f32[] mirrored
  %b = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %c = jax.div(%b, %a) : f32[4] mirrored
  %d = jax.mul(%a, 0.5:f32) : f32[] mirrored
  %e = jax.mul(%c, %d) : f32[4] mirrored
  return %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %b = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %c = jax.div(%b, 2.0:f32) : f32[4] mirrored
  return %c
}

# title: a branch that is chosen by a constant
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %i = jax.convert_element_type(true:bool) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[] mirrored
  %a = cond(%i, %x) : f32[4] per_replica
    branch_0(%y: f32[4] per_replica) {
      %s = jax.floor(%y) : f32[4] per_replica
      return %s
    }
    branch_1(%y: f32[4] per_replica) {
      %n = jax.neg(%y) : f32[4] per_replica
      return %n
    }
  %b = jax.neg(%a) : f32[4] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  return per_replica %x
}
