# title: gradient descent adds the rows to the table, each times the rate
# not executed: the text lacks JAX's dimension numbers; test_add_rows_to_tables.py compares numbers
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 2), broadcast_dimensions=(), sharding=none} : f32[4,2] mirrored
  %g = jax.scatter-add(%z, %i, %u) : f32[4,2] mirrored
  %m = jax.mul(0.5:f32, %g) {out_dtype=none} : f32[4,2] mirrored
  %n = jax.sub(%t, %m) : f32[4,2] mirrored
  return %n
}
-->
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored) {
  %m = jax.mul(0.5:f32, %u) {out_dtype=none} : f32[3,2] mirrored
  %0 = scale(%m) {factor=-1.0} : f32[3,2] mirrored
  %g = jax.scatter-add(%t, %i, %0) : f32[4,2] mirrored
  return %g
}

# title: the rows of two lookups are added one after the other
# not executed: the text lacks JAX's dimension numbers; test_add_rows_to_tables.py compares numbers
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored, %j: i32[1,1] mirrored, %v: f32[1,2] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 2), broadcast_dimensions=(), sharding=none} : f32[4,2] mirrored
  %g = jax.scatter-add(%z, %i, %u) : f32[4,2] mirrored
  %h = jax.scatter-add(%g, %j, %v) : f32[4,2] mirrored
  %n = jax.add(%t, %h) : f32[4,2] mirrored
  return %n
}
-->
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored, %j: i32[1,1] mirrored, %v: f32[1,2] mirrored) {
  %g = jax.scatter-add(%t, %i, %u) : f32[4,2] mirrored
  %h = jax.scatter-add(%g, %j, %v) : f32[4,2] mirrored
  return %h
}

# title: a gradient that is returned, too, stays
# not executed: the text lacks JAX's dimension numbers; test_add_rows_to_tables.py compares numbers
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 2), broadcast_dimensions=(), sharding=none} : f32[4,2] mirrored
  %g = jax.scatter-add(%z, %i, %u) : f32[4,2] mirrored
  %n = jax.add(%t, %g) : f32[4,2] mirrored
  return %n, %g
}
-->
graph f on 2 replicas, stage spmd
(%t: f32[4,2] mirrored, %i: i32[3,1] mirrored, %u: f32[3,2] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4, 2), broadcast_dimensions=(), sharding=none} : f32[4,2] mirrored
  %g = jax.scatter-add(%z, %i, %u) : f32[4,2] mirrored
  %n = jax.add(%t, %g) : f32[4,2] mirrored
  return %n, %g
}
