# title: in two stages, over the digits of the replica's number
graph f on 16 replicas, stage spmd
(%x: f32[32] per_replica) {
  %s = reduce_scatter(%x) {reducer="mean", group_size=16, axis=0} : f32[2] sharded(0)
  return per_replica %s
}
-->
graph f on 16 replicas, stage spmd
(%x: f32[32] per_replica) {
  %s = reduce_scatter(%x) {reducer="mean", axis=0, group_size=16, stages=(8, 2)} : f32[2] sharded(0)
  return per_replica %s
}

# title: gathered in stages on 64 replicas, where an all_reduce is made of it
graph f on 64 replicas, stage spmd
(%x: f32[2,3] sharded(0)) {
  %g = all_gather(%x) {group_size=64, axis=0} : f32[128,3] mirrored
  return %g
}
-->
graph f on 64 replicas, stage spmd
(%x: f32[2,3] sharded(0)) {
  %g = all_gather(%x) {axis=0, group_size=64, stages=(32, 2)} : f32[128,3] mirrored
  return %g
}

# title: gathered as it is on 16
graph f on 16 replicas, stage spmd
(%x: f32[2] sharded(0)) {
  %g = all_gather(%x) {group_size=16, axis=0} : f32[32] mirrored
  return %g
}
-->
graph f on 16 replicas, stage spmd
(%x: f32[2] sharded(0)) {
  %g = all_gather(%x) {axis=0, group_size=16} : f32[32] mirrored
  return %g
}

# title: few replicas need no stages
graph f on 8 replicas, stage spmd
(%x: f32[16] per_replica) {
  %s = reduce_scatter(%x) {reducer="sum", group_size=8, axis=0} : f32[2] sharded(0)
  return per_replica %s
}
-->
graph f on 8 replicas, stage spmd
(%x: f32[16] per_replica) {
  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=8} : f32[2] sharded(0)
  return per_replica %s
}

# title: groups of replicas: over the digits of the number within the group
graph f on 32 replicas, stage spmd
(%x: f32[16] per_replica) {
  %0 = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16, num_groups=2} : f32[1] sharded(0) over member
  return per_replica %0
}
-->
graph f on 32 replicas, stage spmd
(%x: f32[16] per_replica) {
  %0 = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16, num_groups=2, stages=(8, 2)} : f32[1] sharded(0) over member
  return per_replica %0
}
