# title: a server updates a variable with its slot, of the gradient that the worker sends
graph step on 1 replica, stage spmd
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, server=1}
  variable @m: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[2] mirrored = @w, %m: f32[2] mirrored = @m, %x: f32[2] mirrored) {
  %p = jax.mul(%x, %w) {out_dtype=none} : f32[2] mirrored
  %m1 = jax.mul(%m, 0.9:f32) {out_dtype=none} : f32[2] mirrored
  %m2 = jax.add(%m1, %p) : f32[2] mirrored
  %w2 = jax.sub(%w, %m2) : f32[2] mirrored
  return %w2 -> @w, %m2 -> @m, %p
}
-->
# the worker reads %w: @w, 8 bytes from server 1
graph step on 1 replica, stage spmd
(%x: f32[2] mirrored, %w: f32[2] mirrored) {
  %p = jax.mul(%x, %w) {out_dtype=none} : f32[2] mirrored
  return %p, %x
}
# server 1 updates @w, @m with %x: 8 bytes
graph update_w on 1 replica, stage spmd
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, server=1}
  variable @m: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[2] mirrored = @w, %m: f32[2] mirrored = @m, %x: f32[2] mirrored) {
  %p = jax.mul(%x, %w) {out_dtype=none} : f32[2] mirrored
  %m1 = jax.mul(%m, 0.9:f32) {out_dtype=none} : f32[2] mirrored
  %m2 = jax.add(%m1, %p) : f32[2] mirrored
  %w2 = jax.sub(%w, %m2) : f32[2] mirrored
  return %w2 -> @w, %m2 -> @m
}

# title: rows that are looked up are read alone
graph step on 1 replica, stage spmd
  variable @t: f32[12,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, server=0}
(%t: f32[12,3] mirrored = @t, %x: i32[] mirrored) {
  %r = jax.dynamic_slice(%t, %x, 0:i32) {slice_sizes=(1, 3)} : f32[1,3] mirrored
  return %r
}
-->
# the worker computes which rows it reads
graph step_rows on 1 replica, stage spmd
(%x: i32[] mirrored) {
  %0 = reshape(%x) {shape=(1, 1)} : i32[1,1] mirrored
  return %0
}
# the worker reads %t: rows of @t, at most 12 bytes from server 0
graph step on 1 replica, stage spmd
(%x: i32[] mirrored, %t: f32[1,3] mirrored) {
  return %t
}

# title: a step that changes a variable without reading it
graph step on 1 replica, stage spmd
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[2] mirrored = @w, %x: f32[2] mirrored) {
  %w2 = jax.add(%w, %x) : f32[2] mirrored
  return %w2 -> @w
}
-->
graph step on 1 replica, stage spmd
(%x: f32[2] mirrored) {
  return %x
}
# a server updates @w with %x: 8 bytes
graph update_w on 1 replica, stage spmd
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[2] mirrored = @w, %x: f32[2] mirrored) {
  %w2 = jax.add(%w, %x) : f32[2] mirrored
  return %w2 -> @w
}

# title: on one replica a reduction is nothing, and what is behind it is sent
graph step on 1 replica, stage placed
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[4,3] mirrored = @w, %x: f32[3] per_replica) {
  %g = jax.broadcast_in_dim(%x) {shape=(4, 3), broadcast_dimensions=(1,), sharding=none} : f32[4,3] per_replica
  %a = all_reduce(%g) {reducer="mean", group_size=1} : f32[4,3] mirrored
  %w2 = jax.sub(%w, %a) : f32[4,3] mirrored
  return %w2 -> @w
}
-->
graph step on 1 replica, stage placed
(%x: f32[3] per_replica) {
  return %x
}
# a server updates @w with %x: 12 bytes
graph update_w on 1 replica, stage spmd
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[4,3] mirrored = @w, %x: f32[3] mirrored) {
  %g = jax.broadcast_in_dim(%x) {shape=(4, 3), broadcast_dimensions=(1,), sharding=none} : f32[4,3] mirrored
  %w2 = jax.sub(%w, %g) : f32[4,3] mirrored
  return %w2 -> @w
}

# title: a step without variables stays
graph step on 1 replica, stage spmd
(%x: f32[2] mirrored) {
  %y = jax.neg(%x) : f32[2] mirrored
  return %y
}
-->
graph step on 1 replica, stage spmd
(%x: f32[2] mirrored) {
  %y = jax.neg(%x) : f32[2] mirrored
  return %y
}
