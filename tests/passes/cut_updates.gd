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
graph step on 1 replica, stage spmd
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, server=1}
  variable @m: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[2] mirrored = @w, %m: f32[2] mirrored = @m, %x: f32[2] mirrored) {
  %w_1 = pull(%w) {bytes=8, server=1} : f32[2] mirrored
  %p = jax.mul(%x, %w_1) {out_dtype=none} : f32[2] mirrored
  %0, %1 = push(%w, %m, %x) {num_variables=2, bytes=8, server=1} : f32[2] mirrored, f32[2] mirrored
    update_w(%w_2: f32[2] mirrored, %m_1: f32[2] mirrored, %x_1: f32[2] mirrored) {
      %p_1 = jax.mul(%x_1, %w_2) {out_dtype=none} : f32[2] mirrored
      %m1 = jax.mul(%m_1, 0.9:f32) {out_dtype=none} : f32[2] mirrored
      %m2 = jax.add(%m1, %p_1) : f32[2] mirrored
      %w2 = jax.sub(%w_2, %m2) : f32[2] mirrored
      return %w2, %m2
    }
  return %0 -> @w, %1 -> @m, %p
}

# title: rows that are looked up are read alone
graph step on 1 replica, stage spmd
  variable @t: f32[12,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, server=0}
(%t: f32[12,3] mirrored = @t, %x: i32[] mirrored) {
  %r = jax.dynamic_slice(%t, %x, 0:i32) {slice_sizes=(1, 3)} : f32[1,3] mirrored
  return %r
}
-->
graph step on 1 replica, stage spmd
  variable @t: f32[12,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, server=0}
(%t: f32[12,3] mirrored = @t, %x: i32[] mirrored) {
  %0 = reshape(%x) {shape=(1, 1)} : i32[1,1] mirrored
  %t_1 = pull(%t, %0) {bytes=12, server=0} : f32[1,3] mirrored
  return %t_1
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
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[2] mirrored = @w, %x: f32[2] mirrored) {
  %0 = push(%w, %x) {num_variables=1, bytes=8} : f32[2] mirrored
    update_w(%w_1: f32[2] mirrored, %x_1: f32[2] mirrored) {
      %w2 = jax.add(%w_1, %x_1) : f32[2] mirrored
      return %w2
    }
  return %0 -> @w
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
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[4,3] mirrored = @w, %x: f32[3] per_replica) {
  %0 = push(%w, %x) {num_variables=1, bytes=12} : f32[4,3] mirrored
    update_w(%w_1: f32[4,3] mirrored, %x_1: f32[3] mirrored) {
      %g = jax.broadcast_in_dim(%x_1) {shape=(4, 3), broadcast_dimensions=(1,), sharding=none} : f32[4,3] mirrored
      %w2 = jax.sub(%w_1, %g) : f32[4,3] mirrored
      return %w2
    }
  return %0 -> @w
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
