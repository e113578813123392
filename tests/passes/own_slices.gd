# title: the own slice of an all_gather
graph f on 2 replicas, stage spmd
(%x: f32[4,3] per_replica) {
  %all = all_gather(%x) {axis=0, group_size=2} : f32[8,3] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(%r, 4:i32) {out_dtype=none} : i32[] per_replica
  %mine = jax.dynamic_slice(%all, %start, 0:i32) {slice_sizes=(4, 3)} : f32[4,3] per_replica
  return per_replica %mine
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,3] per_replica) {
  %all = all_gather(%x) {axis=0, group_size=2} : f32[8,3] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(%r, 4:i32) {out_dtype=none} : i32[] per_replica
  return per_replica %x
}

# title: the own slice of a sum, with the index as NumPy counts
graph f on 2 replicas, stage spmd
(%x: f32[3,4] per_replica) {
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[3,4] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(2:i32, %r) {out_dtype=none} : i32[] per_replica
  %negative = jax.lt(%start, 0:i32) : bool[] per_replica
  %around = jax.add(%start, 4:i32) : i32[] per_replica
  %index = jax.select_n(%negative, %start, %around) : i32[] per_replica
  %mine = jax.dynamic_slice(%sum, 0:i32, %index) {slice_sizes=(3, 2)} : f32[3,2] per_replica
  return per_replica %mine
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3,4] per_replica) {
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[3,4] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(2:i32, %r) {out_dtype=none} : i32[] per_replica
  %negative = jax.lt(%start, 0:i32) : bool[] per_replica
  %around = jax.add(%start, 4:i32) : i32[] per_replica
  %index = jax.select_n(%negative, %start, %around) : i32[] per_replica
  %mine = reduce_scatter(%x) {reducer="sum", axis=1, group_size=2} : f32[3,2] sharded(1)
  return per_replica %mine
}

# title: gathering what a reduce_scatter left
graph f on 3 replicas, stage spmd
(%x: f32[6] per_replica) {
  %part = reduce_scatter(%x) {axis=0, reducer="mean", group_size=3} : f32[2] sharded(0)
  %all = all_gather(%part) {axis=0, group_size=3} : f32[6] mirrored
  return %all
}
-->
graph f on 3 replicas, stage spmd
(%x: f32[6] per_replica) {
  %part = reduce_scatter(%x) {reducer="mean", axis=0, group_size=3} : f32[2] sharded(0)
  %all = all_reduce(%x) {reducer="mean", group_size=3} : f32[6] mirrored
  return %all
}

# title: left alone: a sum that is needed whole, another's slice, another dimension, a longer slice
graph f on 2 replicas, stage spmd
(%x: f32[4,4] per_replica) {
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[4,4] mirrored
  %all = all_gather(%x) {axis=0, group_size=2} : f32[8,4] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(%r, 2:i32) {out_dtype=none} : i32[] per_replica
  %other = jax.sub(2:i32, %start) : i32[] per_replica
  %a = jax.dynamic_slice(%sum, %start, 0:i32) {slice_sizes=(2, 4)} : f32[2,4] per_replica
  %b = jax.dynamic_slice(%all, 0:i32, %start) {slice_sizes=(8, 2)} : f32[8,2] per_replica
  %c = jax.dynamic_slice(%sum, %other, 0:i32) {slice_sizes=(2, 4)} : f32[2,4] per_replica
  %d = jax.dynamic_slice(%all, %start, 0:i32) {slice_sizes=(3, 4)} : f32[3,4] per_replica
  return per_replica %a, per_replica %b, per_replica %c, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,4] per_replica) {
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[4,4] mirrored
  %all = all_gather(%x) {axis=0, group_size=2} : f32[8,4] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(%r, 2:i32) {out_dtype=none} : i32[] per_replica
  %other = jax.sub(2:i32, %start) : i32[] per_replica
  %a = jax.dynamic_slice(%sum, %start, 0:i32) {slice_sizes=(2, 4)} : f32[2,4] per_replica
  %b = jax.dynamic_slice(%all, 0:i32, %start) {slice_sizes=(8, 2)} : f32[8,2] per_replica
  %c = jax.dynamic_slice(%sum, %other, 0:i32) {slice_sizes=(2, 4)} : f32[2,4] per_replica
  %d = jax.dynamic_slice(%all, %start, 0:i32) {slice_sizes=(3, 4)} : f32[3,4] per_replica
  return per_replica %a, per_replica %b, per_replica %c, per_replica %d
}

# title: left alone: a start that is no whole multiple of the replica's number, and a maximum
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica, %y: f32[2] per_replica) {
  %r = replica_id() {group_size=2} : i32[] per_replica
  %flag = jax.convert_element_type(%r) {new_dtype=dtype<bool>, weak_type=false, sharding=none} : bool[] per_replica
  %start = jax.convert_element_type(%flag) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[] per_replica
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[2] mirrored
  %a = jax.dynamic_slice(%sum, %start) {slice_sizes=(1,)} : f32[1] per_replica
  %most = all_reduce(%y) {reducer="max", group_size=2} : f32[2] mirrored
  %b = jax.dynamic_slice(%most, %r) {slice_sizes=(1,)} : f32[1] per_replica
  return per_replica %a, per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica, %y: f32[2] per_replica) {
  %r = replica_id() {group_size=2} : i32[] per_replica
  %flag = jax.convert_element_type(%r) {new_dtype=dtype<bool>, weak_type=false, sharding=none} : bool[] per_replica
  %start = jax.convert_element_type(%flag) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[] per_replica
  %sum = all_reduce(%x) {reducer="sum", group_size=2} : f32[2] mirrored
  %a = jax.dynamic_slice(%sum, %start) {slice_sizes=(1,)} : f32[1] per_replica
  %most = all_reduce(%y) {reducer="max", group_size=2} : f32[2] mirrored
  %b = jax.dynamic_slice(%most, %r) {slice_sizes=(1,)} : f32[1] per_replica
  return per_replica %a, per_replica %b
}

# title: the own slice of what is gathered after a reduce_scatter: two rules in one run
graph f on 2 replicas, stage spmd
(%x: f32[8] per_replica) {
  %part = reduce_scatter(%x) {axis=0, reducer="sum", group_size=2} : f32[4] sharded(0)
  %all = all_gather(%part) {axis=0, group_size=2} : f32[8] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(%r, 4:i32) {out_dtype=none} : i32[] per_replica
  %mine = jax.dynamic_slice(%all, %start) {slice_sizes=(4,)} : f32[4] per_replica
  return per_replica %mine
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[8] per_replica) {
  %part = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[4] sharded(0)
  %all = all_reduce(%x) {reducer="sum", group_size=2} : f32[8] mirrored
  %r = replica_id() {group_size=2} : i32[] per_replica
  %start = jax.mul(%r, 4:i32) {out_dtype=none} : i32[] per_replica
  %mine = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[4] sharded(0)
  return per_replica %mine
}

# title: groups of replicas: what is gathered after a reduce_scatter is the sum of all replicas
graph f on 4 replicas, stage spmd
(%x: f32[8] per_replica) {
  %0 = reduce_scatter(%x) {reducer="mean", axis=0, group_size=2, num_groups=2} : f32[4] sharded(0) over member
  %all = all_gather(%0) {axis=0, group_size=2, num_groups=2} : f32[8] mirrored
  return %all
}
-->
graph f on 4 replicas, stage spmd
(%x: f32[8] per_replica) {
  %0 = reduce_scatter(%x) {reducer="mean", axis=0, group_size=2, num_groups=2} : f32[4] sharded(0) over member
  %all = all_reduce(%x) {reducer="mean", group_size=4} : f32[8] mirrored
  return %all
}

# title: left alone: the slice of a sum of each group
graph f on 4 replicas, stage spmd
(%y: f32[8] per_replica) {
  %2 = all_reduce(%y) {reducer="max", group_size=4} : f32[8] mirrored
  %3 = all_reduce(%2) {reducer="sum", group_size=2, num_groups=2} : f32[8] mirrored
  %number = replica_id() {group_size=4} : i32[] per_replica
  %start = jax.mul(%number, 2:i32) {out_dtype=none} : i32[] per_replica
  %mine = jax.dynamic_slice(%3, %start) {slice_sizes=(2,)} : f32[2] per_replica
  return per_replica %mine
}
-->
graph f on 4 replicas, stage spmd
(%y: f32[8] per_replica) {
  %0 = all_reduce(%y) {reducer="max", group_size=4} : f32[8] mirrored
  %1 = all_reduce(%0) {reducer="sum", group_size=2, num_groups=2} : f32[8] mirrored
  %number = replica_id() {group_size=4} : i32[] per_replica
  %start = jax.mul(%number, 2:i32) {out_dtype=none} : i32[] per_replica
  %mine = jax.dynamic_slice(%1, %start) {slice_sizes=(2,)} : f32[2] per_replica
  return per_replica %mine
}
