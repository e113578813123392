# title: small reductions of one reducer and dtype share a buffer
graph f on 2 replicas, stage spmd
(%x: f32[2,2] per_replica, %y: f32[3] per_replica, %n: i32[3] per_replica) {
  %a = all_reduce(%x) {reducer="mean", group_size=2} : f32[2,2] mirrored
  %b = all_reduce(%y) {reducer="mean", group_size=2} : f32[3] mirrored
  %c = all_reduce(%y) {reducer="max", group_size=2} : f32[3] mirrored
  %d = all_reduce(%n) {reducer="sum", group_size=2} : i32[3] mirrored
  return %a, %b, %c, %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,2] per_replica, %y: f32[3] per_replica, %n: i32[3] per_replica) {
  %c = all_reduce(%y) {reducer="max", group_size=2} : f32[3] mirrored
  %d = all_reduce(%n) {reducer="sum", group_size=2} : i32[3] mirrored
  %0 = pack(%x, %y) : f32[7] per_replica
  %1 = all_reduce(%0) {reducer="mean", group_size=2} : f32[7] mirrored
  %2, %3 = unpack(%1) {shapes=((2, 2), (3,))} : f32[2,2] mirrored, f32[3] mirrored
  return %2, %3, %c, %d
}

# title: what depends on a reduction comes after its buffer, and the next buffer after that
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica, %y: f32[3] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[3] mirrored
  %twice = jax.mul(%a, 2.0:f32) {out_dtype=none} : f32[3] mirrored
  %mixed = jax.mul(%twice, %y) {out_dtype=none} : f32[3] per_replica
  %b = all_reduce(%y) {reducer="sum", group_size=2} : f32[3] mirrored
  %c = all_reduce(%mixed) {reducer="sum", group_size=2} : f32[3] mirrored
  %d = all_reduce(%x) {reducer="sum", group_size=2} : f32[3] mirrored
  %late = jax.mul(%d, %y) {out_dtype=none} : f32[3] per_replica
  %e = all_reduce(%late) {reducer="sum", group_size=2} : f32[3] mirrored
  return %b, %c, %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica, %y: f32[3] per_replica) {
  %0 = pack(%x, %y, %x) : f32[9] per_replica
  %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[9] mirrored
  %2, %3, %4 = unpack(%1) {shapes=((3,), (3,), (3,))} : f32[3] mirrored, f32[3] mirrored, f32[3] mirrored
  %twice = jax.mul(%2, 2.0:f32) {out_dtype=none} : f32[3] mirrored
  %mixed = jax.mul(%twice, %y) {out_dtype=none} : f32[3] per_replica
  %late = jax.mul(%4, %y) {out_dtype=none} : f32[3] per_replica
  %5 = pack(%mixed, %late) : f32[6] per_replica
  %6 = all_reduce(%5) {reducer="sum", group_size=2} : f32[6] mirrored
  %7, %8 = unpack(%6) {shapes=((3,), (3,))} : f32[3] mirrored, f32[3] mirrored
  return %3, %7, %8
}

# title: a large reduction stays by itself
graph f on 2 replicas, stage spmd
(%x: f32[512,512] per_replica, %y: f32[3] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[512,512] mirrored
  %b = all_reduce(%y) {reducer="sum", group_size=2} : f32[3] mirrored
  return %a, %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[512,512] per_replica, %y: f32[3] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[512,512] mirrored
  %b = all_reduce(%y) {reducer="sum", group_size=2} : f32[3] mirrored
  return %a, %b
}

# title: inside a loop
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %c, %d = scan(0.0:f32, 0.0:f32, %x) {num_consts=0, num_carry=2, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[] mirrored
    body(%c_in: f32[] mirrored, %d_in: f32[] mirrored, %row: f32[] per_replica) {
      %square = jax.mul(%row, %row) {out_dtype=none} : f32[] per_replica
      %a = all_reduce(%row) {reducer="sum", group_size=2} : f32[] mirrored
      %b = all_reduce(%square) {reducer="sum", group_size=2} : f32[] mirrored
      %c_out = jax.add(%c_in, %a) : f32[] mirrored
      %d_out = jax.add(%d_in, %b) : f32[] mirrored
      return %c_out, %d_out
    }
  return %c, %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %c, %d = scan(0.0:f32, 0.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[] mirrored, f32[] mirrored
    body(%c_in: f32[] mirrored, %d_in: f32[] mirrored, %row: f32[] per_replica) {
      %square = jax.mul(%row, %row) {out_dtype=none} : f32[] per_replica
      %0 = pack(%row, %square) : f32[2] per_replica
      %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[2] mirrored
      %2, %3 = unpack(%1) {shapes=((), ())} : f32[] mirrored, f32[] mirrored
      %c_out = jax.add(%c_in, %2) : f32[] mirrored
      %d_out = jax.add(%d_in, %3) : f32[] mirrored
      return %c_out, %d_out
    }
  return %c, %d
}

# title: reduce_scatters along different dimensions: first all that is replica 0's
graph f on 2 replicas, stage spmd
(%x: f32[4,3] per_replica, %y: f32[3,2] per_replica, %z: f32[6] per_replica) {
  %a = reduce_scatter(%x) {reducer="mean", group_size=2, axis=0} : f32[2,3] sharded(0)
  %b = reduce_scatter(%y) {reducer="mean", group_size=2, axis=1} : f32[3,1] sharded(1)
  %c = reduce_scatter(%z) {reducer="sum", group_size=2, axis=0} : f32[3] sharded(0)
  return per_replica %a, per_replica %b, per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,3] per_replica, %y: f32[3,2] per_replica, %z: f32[6] per_replica) {
  %c = reduce_scatter(%z) {reducer="sum", axis=0, group_size=2} : f32[3] sharded(0)
  %0 = pack_slices(%x, %y) {axes=(0, 1), group_size=2} : f32[18] per_replica
  %1 = reduce_scatter(%0) {reducer="mean", axis=0, group_size=2} : f32[9] sharded(0)
  %2, %3 = unpack(%1) {shapes=((2, 3), (3, 1)), axes=(0, 1)} : f32[2,3] sharded(0), f32[3,1] sharded(1)
  return per_replica %2, per_replica %3, per_replica %c
}

# title: all_gathers of slices along different dimensions
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica, %y: f32[3,2] per_replica) {
  %a = all_gather(%x) {axis=0, group_size=2} : f32[4,3] mirrored
  %b = all_gather(%y) {axis=1, group_size=2} : f32[3,4] mirrored
  return %a, %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica, %y: f32[3,2] per_replica) {
  %0 = pack(%x, %y) : f32[12] per_replica
  %1 = all_gather(%0) {axis=0, group_size=2} : f32[24] mirrored
  %2, %3 = unpack_slices(%1) {shapes=((4, 3), (3, 4)), axes=(0, 1), group_size=2} : f32[4,3] mirrored, f32[3,4] mirrored
  return %2, %3
}

# title: slices that groups of replicas share out, apart from slices of all replicas
graph f on 4 replicas, stage spmd
(%a: f32[4,3] per_replica, %b: f32[3,4] per_replica, %c: f32[4] per_replica, %d: f32[8] per_replica) {
  %0 = reduce_scatter(%a) {reducer="sum", axis=0, group_size=2, num_groups=2} : f32[2,3] sharded(0) over member
  %1 = reduce_scatter(%b) {reducer="sum", axis=1, group_size=2, num_groups=2} : f32[3,2] sharded(1) over member
  %2 = reduce_scatter(%c) {reducer="sum", axis=0, group_size=4} : f32[1] sharded(0)
  %3 = reduce_scatter(%d) {reducer="sum", axis=0, group_size=4} : f32[2] sharded(0)
  %4 = all_gather(%0) {axis=0, group_size=2, num_groups=2} : f32[4,3] mirrored
  %5 = all_gather(%1) {axis=1, group_size=2, num_groups=2} : f32[3,4] mirrored
  return %4, %5, per_replica %2, per_replica %3
}
-->
graph f on 4 replicas, stage spmd
(%a: f32[4,3] per_replica, %b: f32[3,4] per_replica, %c: f32[4] per_replica, %d: f32[8] per_replica) {
  %0 = pack_slices(%a, %b) {axes=(0, 1), group_size=2, num_groups=2} : f32[24] per_replica
  %1 = reduce_scatter(%0) {reducer="sum", axis=0, group_size=2, num_groups=2} : f32[12] sharded(0) over member
  %2, %3 = unpack(%1) {shapes=((2, 3), (3, 2)), axes=(0, 1), over="member"} : f32[2,3] sharded(0) over member, f32[3,2] sharded(1) over member
  %4 = pack_slices(%c, %d) {axes=(0, 0), group_size=4} : f32[12] per_replica
  %5 = reduce_scatter(%4) {reducer="sum", axis=0, group_size=4} : f32[3] sharded(0)
  %6, %7 = unpack(%5) {shapes=((1,), (2,)), axes=(0, 0)} : f32[1] sharded(0), f32[2] sharded(0)
  %8 = pack(%2, %3) : f32[12] per_replica
  %9 = all_gather(%8) {axis=0, group_size=2, num_groups=2} : f32[24] mirrored
  %10, %11 = unpack_slices(%9) {shapes=((4, 3), (3, 4)), axes=(0, 1), group_size=2, num_groups=2} : f32[4,3] mirrored, f32[3,4] mirrored
  return %10, %11, per_replica %6, per_replica %7
}

# title: what is packed already, by whatever pass, is not packed again
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica, %y: f32[3] per_replica) {
  %0 = pack(%x, %y) : f32[5] per_replica
  %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[5] mirrored
  %2, %3 = unpack(%1) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %4 = pack(%y, %x) : f32[5] per_replica
  %5 = all_reduce(%4) {reducer="sum", group_size=2} : f32[5] mirrored
  %6, %7 = unpack(%5) {shapes=((3,), (2,))} : f32[3] mirrored, f32[2] mirrored
  return %2, %3, %6, %7
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica, %y: f32[3] per_replica) {
  %0 = pack(%x, %y) : f32[5] per_replica
  %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[5] mirrored
  %2, %3 = unpack(%1) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %4 = pack(%y, %x) : f32[5] per_replica
  %5 = all_reduce(%4) {reducer="sum", group_size=2} : f32[5] mirrored
  %6, %7 = unpack(%5) {shapes=((3,), (2,))} : f32[3] mirrored, f32[2] mirrored
  return %2, %3, %6, %7
}

# title: over the cores of a replica, what is mirrored apart from what differs between replicas
graph f on 2 replicas split over 2 cores, stage spmd
(%x: f32[4] mirrored, %y: f32[2,6] per_replica) {
  %0 = slice_of_core(%x) {axis=0, num_cores=2} : f32[2] mirrored
  %1 = slice_of_core(%y) {axis=1, num_cores=2} : f32[2,3] per_replica
  %2 = jax.reduce_sum(%0) {axes=(0,), out_sharding=none} : f32[] mirrored
  %3 = jax.reduce_sum(%1) {axes=(1,), out_sharding=none} : f32[2] per_replica
  %4 = jax.reduce_sum(%1) {axes=(0, 1), out_sharding=none} : f32[] per_replica
  %5 = all_reduce_over_cores(%2) {reducer="sum", num_cores=2} : f32[] mirrored
  %6 = all_reduce_over_cores(%3) {reducer="sum", num_cores=2} : f32[2] per_replica
  %7 = all_reduce_over_cores(%4) {reducer="sum", num_cores=2} : f32[] per_replica
  return %5, per_replica %6, per_replica %7
}
-->
graph f on 2 replicas split over 2 cores, stage spmd
(%x: f32[4] mirrored, %y: f32[2,6] per_replica) {
  %0 = slice_of_core(%x) {axis=0, num_cores=2} : f32[2] mirrored
  %1 = slice_of_core(%y) {axis=1, num_cores=2} : f32[2,3] per_replica
  %2 = jax.reduce_sum(%0) {axes=(0,), out_sharding=none} : f32[] mirrored
  %3 = jax.reduce_sum(%1) {axes=(1,), out_sharding=none} : f32[2] per_replica
  %4 = jax.reduce_sum(%1) {axes=(0, 1), out_sharding=none} : f32[] per_replica
  %5 = all_reduce_over_cores(%2) {reducer="sum", num_cores=2} : f32[] mirrored
  %6 = pack(%3, %4) : f32[3] per_replica
  %7 = all_reduce_over_cores(%6) {reducer="sum", num_cores=2} : f32[3] per_replica
  %8, %9 = unpack(%7) {shapes=((2,), ())} : f32[2] per_replica, f32[] per_replica
  return %5, per_replica %8, per_replica %9
}
