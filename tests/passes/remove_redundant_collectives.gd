# title: reductions of a mirrored value
graph f on 2 replicas, stage spmd
(%w: f32[3] mirrored) {
  %sum = all_reduce(%w) {reducer="sum", group_size=2} : f32[3] mirrored
  %mean = all_reduce(%w) {reducer="mean", group_size=2} : f32[3] mirrored
  %most = all_reduce(%w) {reducer="max", group_size=2} : f32[3] mirrored
  return %sum, %mean, %most
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3] mirrored) {
  %sum = scale(%w) {factor=2} : f32[3] mirrored
  return %sum, %w, %w
}

# title: a reduction of a reduction
graph f on 3 replicas, stage spmd
(%x: f32[3] per_replica) {
  %once = all_reduce(%x) {reducer="mean", group_size=3} : f32[3] mirrored
  %twice = all_reduce(%once) {reducer="sum", group_size=3} : f32[3] mirrored
  return %twice
}
-->
graph f on 3 replicas, stage spmd
(%x: f32[3] per_replica) {
  %once = all_reduce(%x) {reducer="mean", group_size=3} : f32[3] mirrored
  %twice = scale(%once) {factor=3} : f32[3] mirrored
  return %twice
}

# title: gathering a mirrored value, and what a loop makes of one
graph f on 2 replicas, stage spmd
(%w: f32[2,1] mirrored) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[2,2] mirrored
  %c = scan(%w) {num_consts=0, num_carry=1, length=2, reverse=false, unroll=1} : f32[2,1] mirrored
    body(%c_in: f32[2,1] mirrored) {
      %mean = all_reduce(%c_in) {reducer="mean", group_size=2} : f32[2,1] mirrored
      return %mean
    }
  return %all, %c
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,1] mirrored) {
  %all = concatenate(%w, %w) {axis=1} : f32[2,2] mirrored
  %c = scan(%w) {length=2, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[2,1] mirrored
    body(%c_in: f32[2,1] mirrored) {
      return %c_in
    }
  return %all, %c
}

# title: over one replica nothing is left
graph f on 1 replica, stage spmd
(%x: f32[4] mirrored) {
  %id = replica_id() {group_size=1} : i32[] mirrored
  %sum = all_reduce(%x) {reducer="sum", group_size=1} : f32[4] mirrored
  %all = all_gather(%sum) {axis=0, group_size=1} : f32[4] mirrored
  %own = reduce_scatter(%all) {reducer="sum", axis=0, group_size=1} : f32[4] mirrored
  %sent = collective_permute(%own) {pairs=((0, 0),), group_size=1} : f32[4] mirrored
  %part = all_to_all(%sent) {split_axis=0, concat_axis=0, group_size=1} : f32[4] mirrored
  %first = select_replica(%part) {replica=0, group_size=1} : f32[4] mirrored
  return %id, %first
}
-->
graph f on 1 replica, stage spmd
(%x: f32[4] mirrored) {
  return 0:i32, %x
}

# title: a permutation that sends nothing is zero, on one replica too
graph f on 1 replica, stage spmd
(%x: f32[4] mirrored) {
  %sent = collective_permute(%x) {pairs=(), group_size=1} : f32[4] mirrored
  return %sent
}
-->
graph f on 1 replica, stage spmd
(%x: f32[4] mirrored) {
  %sent = collective_permute(%x) {pairs=(), group_size=1} : f32[4] mirrored
  return %sent
}

# title: what each replica gets of others is no mirrored value
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored) {
  %sent = collective_permute(%w) {pairs=((0, 1),), group_size=2} : f32[4] per_replica
  %part = all_to_all(%w) {split_axis=0, concat_axis=0, group_size=2} : f32[4] per_replica
  return %sent, %part
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored) {
  %sent = collective_permute(%w) {pairs=((0, 1),), group_size=2} : f32[4] per_replica
  %part = all_to_all(%w) {split_axis=0, concat_axis=0, group_size=2} : f32[4] per_replica
  return %sent, %part
}

# title: a per-replica value is still reduced
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  return %sum
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  return %sum
}

# title: nothing to send
graph f on 2 replicas, stage spmd
(%x: f32[0,3] per_replica) {
  %all = all_gather(%x) {axis=0, group_size=2} : f32[0,3] mirrored
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[0,3] mirrored
  return %all, %sum
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[0,3] per_replica) {
  %all = constant() {value=array<f32[0,3]>} : f32[0,3] mirrored
  %sum = constant() {value=array<f32[0,3]>} : f32[0,3] mirrored
  return %all, %sum
}
