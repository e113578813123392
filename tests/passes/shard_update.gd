# title: plain gradient descent: the parameter is gathered
graph f on 2 replicas, stage spmd
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[4,3] mirrored = @w, %x: f32[4,3] per_replica) {
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[4,3] per_replica
  %g = all_reduce(%y) {reducer="mean", group_size=2} : f32[4,3] mirrored
  %d = jax.mul(0.1:f32, %g) {out_dtype=none} : f32[4,3] mirrored
  %new = jax.sub(%w, %d) : f32[4,3] mirrored
  return %new -> @w
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[4,3] mirrored = @w, %x: f32[4,3] per_replica) {
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[4,3] per_replica
  %g = reduce_scatter(%y) {reducer="mean", group_size=2, axis=0} : f32[2,3] sharded(0)
  %d = jax.mul(0.1:f32, %g) {out_dtype=none} : f32[2,3] sharded(0)
  %0 = own_slice(%w) {axis=0, group_size=2} : f32[2,3] sharded(0)
  %new = jax.sub(%0, %d) : f32[2,3] sharded(0)
  %new_1 = all_gather(%new) {axis=0, group_size=2} : f32[4,3] mirrored
  return %new_1 -> @w
}

# title: momentum: the slot is stored in slices, along the dimension that divides
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @m: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[3,4] mirrored = @w, %m: f32[3,4] mirrored = @m, %x: f32[3,4] per_replica) {
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[3,4] per_replica
  %g = all_reduce(%y) {reducer="sum", group_size=2} : f32[3,4] mirrored
  %m1 = jax.mul(0.9:f32, %m) {out_dtype=none} : f32[3,4] mirrored
  %m2 = jax.add(%m1, %g) : f32[3,4] mirrored
  %new = jax.sub(%w, %m2) : f32[3,4] mirrored
  return %new -> @w, %m2 -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @m: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[3,4] mirrored = @w, %m: f32[3,2] sharded(1) = @m, %x: f32[3,4] per_replica) {
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[3,4] per_replica
  %g = reduce_scatter(%y) {reducer="sum", group_size=2, axis=1} : f32[3,2] sharded(1)
  %m1 = jax.mul(0.9:f32, %m) {out_dtype=none} : f32[3,2] sharded(1)
  %m2 = jax.add(%m1, %g) : f32[3,2] sharded(1)
  %0 = own_slice(%w) {axis=1, group_size=2} : f32[3,2] sharded(1)
  %new = jax.sub(%0, %m2) : f32[3,2] sharded(1)
  %new_1 = all_gather(%new) {axis=1, group_size=2} : f32[3,4] mirrored
  return %new_1 -> @w, %m2 -> @m
}

# title: a global norm: slices are reduced, then what they give
graph f on 2 replicas, stage spmd
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[4] mirrored = @w, %x: f32[4] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %square = jax.mul(%g, %g) {out_dtype=none} : f32[4] mirrored
  %total = jax.reduce_sum(%square) {axes=(0,), out_sharding=none} : f32[] mirrored
  %ones = jax.broadcast_in_dim(%total) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %clipped = jax.div(%g, %ones) : f32[4] mirrored
  %new = jax.sub(%w, %clipped) : f32[4] mirrored
  return %new -> @w, %total
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%w: f32[2] sharded(0) = @w, %x: f32[4] per_replica) {
  %g = reduce_scatter(%x) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
  %square = jax.mul(%g, %g) {out_dtype=none} : f32[2] sharded(0)
  %total = jax.reduce_sum(%square) {axes=(0,), out_sharding=none} : f32[] per_replica
  %total_1 = all_reduce(%total) {reducer="sum", group_size=2} : f32[] mirrored
  %ones = jax.broadcast_in_dim(%total_1) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
  %clipped = jax.div(%g, %ones) : f32[2] sharded(0)
  %new = jax.sub(%w, %clipped) : f32[2] sharded(0)
  return %new -> @w, %total_1
}

# title: what only norms want is cut with all it meets, or else left whole
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%m: f32[4] mirrored = @m, %w: f32[4] mirrored = @w, %x: f32[4] per_replica) {
  %g = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %half = jax.mul(%w, 0.5:f32) {out_dtype=none} : f32[4] mirrored
  %of_half = jax.reduce_max(%half) {axes=(0,), out_sharding=none} : f32[] mirrored
  %decayed = jax.add(%g, %half) : f32[4] mirrored
  %largest = jax.reduce_max(%decayed) {axes=(0,), out_sharding=none} : f32[] mirrored
  %double = jax.mul(%w, 2.0:f32) {out_dtype=none} : f32[4] mirrored
  %of_double = jax.reduce_max(%double) {axes=(0,), out_sharding=none} : f32[] mirrored
  %new = jax.sub(%g, %largest) : f32[4] mirrored
  return %new -> @m, %of_half, %of_double
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%m: f32[2] sharded(0) = @m, %w: f32[4] mirrored = @w, %x: f32[4] per_replica) {
  %g = reduce_scatter(%x) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  %0 = own_slice(%w) {axis=0, group_size=2} : f32[2] sharded(0)
  %half = jax.mul(%0, 0.5:f32) {out_dtype=none} : f32[2] sharded(0)
  %of_half = jax.reduce_max(%half) {axes=(0,), out_sharding=none} : f32[] per_replica
  %of_half_1 = all_reduce(%of_half) {reducer="max", group_size=2} : f32[] mirrored
  %decayed = jax.add(%g, %half) : f32[2] sharded(0)
  %largest = jax.reduce_max(%decayed) {axes=(0,), out_sharding=none} : f32[] per_replica
  %largest_1 = all_reduce(%largest) {reducer="max", group_size=2} : f32[] mirrored
  %double = jax.mul(%w, 2.0:f32) {out_dtype=none} : f32[4] mirrored
  %of_double = jax.reduce_max(%double) {axes=(0,), out_sharding=none} : f32[] mirrored
  %new = jax.sub(%g, %largest_1) : f32[2] sharded(0)
  return %new -> @m, %of_half_1, %of_double
}

# title: stored in slices by an earlier program: neither gathered nor cut
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %whole = all_gather(%m) {axis=0, group_size=2} : f32[4] mirrored
  %g = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %sum = jax.add(%whole, %g) : f32[4] mirrored
  %own = own_slice(%sum) {axis=0, group_size=2} : f32[2] sharded(0)
  return %own -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %g = reduce_scatter(%x) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  %sum = jax.add(%m, %g) : f32[2] sharded(0)
  return %sum -> @m
}

# title: what is stored in slices and read whole is gathered once
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %whole = all_gather(%m) {axis=0, group_size=2} : f32[4] mirrored
  %sorted = jax.sort(%whole) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %half = jax.mul(%whole, 0.5:f32) {out_dtype=none} : f32[4] mirrored
  %own = own_slice(%half) {axis=0, group_size=2} : f32[2] sharded(0)
  return %own -> @m, %sorted
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %whole = all_gather(%m) {axis=0, group_size=2} : f32[4] mirrored
  %sorted = jax.sort(%whole) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %half = jax.mul(%m, 0.5:f32) {out_dtype=none} : f32[2] sharded(0)
  return %half -> @m, %sorted
}

# title: left alone: a gradient that is returned, an update that sorts, a length that does not divide
graph f on 2 replicas, stage spmd
  variable @a: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @b: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @c: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%a: f32[4] mirrored = @a, %b: f32[4] mirrored = @b, %c: f32[3] mirrored = @c, %x: f32[4] per_replica, %y: f32[3] per_replica) {
  %ga = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %gb = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %gc = all_reduce(%y) {reducer="sum", group_size=2} : f32[3] mirrored
  %sorted = jax.sort(%gb) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %na = jax.sub(%a, %ga) : f32[4] mirrored
  %nb = jax.sub(%b, %sorted) : f32[4] mirrored
  %nc = jax.sub(%c, %gc) : f32[3] mirrored
  return %na -> @a, %nb -> @b, %nc -> @c, %ga
}
-->
graph f on 2 replicas, stage spmd
  variable @a: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @b: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @c: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%a: f32[4] mirrored = @a, %b: f32[4] mirrored = @b, %c: f32[3] mirrored = @c, %x: f32[4] per_replica, %y: f32[3] per_replica) {
  %ga = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %gb = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %gc = all_reduce(%y) {reducer="sum", group_size=2} : f32[3] mirrored
  %sorted = jax.sort(%gb) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %na = jax.sub(%a, %ga) : f32[4] mirrored
  %nb = jax.sub(%b, %sorted) : f32[4] mirrored
  %nc = jax.sub(%c, %gc) : f32[3] mirrored
  return %na -> @a, %nb -> @b, %nc -> @c, %ga
}

# title: factors for each column and each row: the one is shared by the slices, the other is cut
graph f on 2 replicas, stage spmd
  variable @m: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4,3] mirrored = @m, %x: f32[4,3] per_replica, %column: f32[1,3] mirrored, %row: f32[4,1] mirrored) {
  %g = all_reduce(%x) {reducer="mean", group_size=2} : f32[4,3] mirrored
  %a = jax.mul(%g, %column) {out_dtype=none} : f32[4,3] mirrored
  %b = jax.mul(%a, %row) {out_dtype=none} : f32[4,3] mirrored
  %new = jax.sub(%m, %b) : f32[4,3] mirrored
  return %new -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2,3] sharded(0) = @m, %x: f32[4,3] per_replica, %column: f32[1,3] mirrored, %row: f32[4,1] mirrored) {
  %g = reduce_scatter(%x) {reducer="mean", group_size=2, axis=0} : f32[2,3] sharded(0)
  %a = jax.mul(%g, %column) {out_dtype=none} : f32[2,3] sharded(0)
  %0 = own_slice(%row) {axis=0, group_size=2} : f32[2,1] sharded(0)
  %b = jax.mul(%a, %0) {out_dtype=none} : f32[2,3] sharded(0)
  %new = jax.sub(%m, %b) : f32[2,3] sharded(0)
  return %new -> @m
}

# title: stored in slices by an earlier program, and set to a number
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %s: f32[] mirrored) {
  %full = jax.broadcast_in_dim(%s) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %e = jax.exp(%full) {accuracy=none} : f32[4] mirrored
  %own = own_slice(%e) {axis=0, group_size=2} : f32[2] sharded(0)
  return %own -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %s: f32[] mirrored) {
  %full = jax.broadcast_in_dim(%s) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
  %e = jax.exp(%full) {accuracy=none} : f32[2] mirrored
  return %e -> @m
}
