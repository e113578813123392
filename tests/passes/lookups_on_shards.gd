# title: a shard of zeros is made of the scalar, if nothing else needs all zeros
graph f on 2 replicas, stage spmd
(%x: f32[2,4] sharded(0), %m: bool[2,4] sharded(0)) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 4), broadcast_dimensions=(), sharding=none} : f32[4,4] mirrored
  %s = own_slice(%z) {axis=0, group_size=2} : f32[2,4] sharded(0)
  %y = jax.select_n(%m, %x, %s) : f32[2,4] sharded(0)
  return per_replica %y
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,4] sharded(0), %m: bool[2,4] sharded(0)) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(2, 4), broadcast_dimensions=(), sharding=none} : f32[2,4] mirrored
  %s = as_shard(%z) {axis=0, group_size=2} : f32[2,4] sharded(0)
  %y = jax.select_n(%m, %x, %s) : f32[2,4] sharded(0)
  return per_replica %y
}

# title: zeros that something else needs are left
graph f on 2 replicas, stage spmd
(%x: f32[2,4] sharded(0), %w: f32[4,4] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 4), broadcast_dimensions=(), sharding=none} : f32[4,4] mirrored
  %s = own_slice(%z) {axis=0, group_size=2} : f32[2,4] sharded(0)
  %y = jax.max(%x, %s) : f32[2,4] sharded(0)
  %v = jax.max(%w, %z) : f32[4,4] mirrored
  return per_replica %y, %v
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,4] sharded(0), %w: f32[4,4] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 4), broadcast_dimensions=(), sharding=none} : f32[4,4] mirrored
  %s = own_slice(%z) {axis=0, group_size=2} : f32[2,4] sharded(0)
  %y = jax.max(%x, %s) : f32[2,4] sharded(0)
  %v = jax.max(%w, %z) : f32[4,4] mirrored
  return per_replica %y, %v
}
