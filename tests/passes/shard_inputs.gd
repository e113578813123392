# title: a per-replica scalar comes and goes as an array of one
graph f on 2 replicas, stage placed
(%x: f32[] per_replica, %w: f32[] mirrored) {
  %y = jax.mul(%x, %w) {out_dtype=none} : f32[] per_replica
  return per_replica %y
}
-->
graph f on 2 replicas, stage placed
(%x: f32[1] per_replica, %w: f32[] mirrored) {
  %0 = reshape(%x) {shape=()} : f32[] per_replica
  %y = jax.mul(%0, %w) {out_dtype=none} : f32[] per_replica
  %1 = reshape(%y) {shape=(1,)} : f32[1] per_replica
  return per_replica %1
}

# title: arrays, and a mirrored value the user gets as one a replica, stay
graph f on 2 replicas, stage placed
(%x: f32[3] per_replica, %w: f32[] mirrored) {
  %y = jax.mul(%w, %w) {out_dtype=none} : f32[] mirrored
  return per_replica %x, per_replica %y
}
-->
graph f on 2 replicas, stage placed
(%x: f32[3] per_replica, %w: f32[] mirrored) {
  %y = jax.mul(%w, %w) {out_dtype=none} : f32[] mirrored
  return per_replica %x, per_replica %y
}

# title: a per-replica variable is stored as its shards, also when a mirrored value is assigned
graph f on 2 replicas, stage placed
  variable @own: f32[] per_replica {synchronization="on_read", aggregation="sum", trainable=false, assigned=true}
(%own: f32[] per_replica = @own) {
  return 1.0:f32 -> @own, per_replica %own
}
-->
graph f on 2 replicas, stage placed
  variable @own: f32[] per_replica {synchronization="on_read", aggregation="sum", trainable=false, assigned=true}
(%own: f32[1] per_replica = @own) {
  %0 = reshape(%own) {shape=()} : f32[] per_replica
  %1 = reshape(1.0:f32) {shape=(1,)} : f32[1] mirrored
  %2 = reshape(%0) {shape=(1,)} : f32[1] per_replica
  return %1 -> @own, per_replica %2
}
