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
  %g = reduce_scatter(%y) {reducer="mean", axis=0, group_size=2} : f32[2,3] sharded(0)
  %d = jax.mul(0.1:f32, %g) {out_dtype=none} : f32[2,3] sharded(0)
  %w_1 = own_slice(%w) {axis=0, group_size=2} : f32[2,3] sharded(0)
  %new = jax.sub(%w_1, %d) : f32[2,3] sharded(0)
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
  %g = reduce_scatter(%y) {reducer="sum", axis=1, group_size=2} : f32[3,2] sharded(1)
  %m1 = jax.mul(0.9:f32, %m) {out_dtype=none} : f32[3,2] sharded(1)
  %m2 = jax.add(%m1, %g) : f32[3,2] sharded(1)
  %w_1 = own_slice(%w) {axis=1, group_size=2} : f32[3,2] sharded(1)
  %new = jax.sub(%w_1, %m2) : f32[3,2] sharded(1)
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
  %g = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
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
  %g = reduce_scatter(%x) {reducer="mean", axis=0, group_size=2} : f32[2] sharded(0)
  %half = jax.mul(%w, 0.5:f32) {out_dtype=none} : f32[4] mirrored
  %of_half = jax.reduce_max(%half) {axes=(0,), out_sharding=none} : f32[] mirrored
  %half_1 = own_slice(%half) {axis=0, group_size=2} : f32[2] sharded(0)
  %decayed = jax.add(%g, %half_1) : f32[2] sharded(0)
  %double = jax.mul(%w, 2.0:f32) {out_dtype=none} : f32[4] mirrored
  %of_double = jax.reduce_max(%double) {axes=(0,), out_sharding=none} : f32[] mirrored
  %largest = jax.reduce_max(%decayed) {axes=(0,), out_sharding=none} : f32[] per_replica
  %largest_1 = all_reduce(%largest) {reducer="max", group_size=2} : f32[] mirrored
  %new = jax.sub(%g, %largest_1) : f32[2] sharded(0)
  return %new -> @m, %of_half, %of_double
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
  %g = reduce_scatter(%x) {reducer="mean", axis=0, group_size=2} : f32[2] sharded(0)
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
  %g = reduce_scatter(%x) {reducer="mean", axis=0, group_size=2} : f32[2,3] sharded(0)
  %a = jax.mul(%g, %column) {out_dtype=none} : f32[2,3] sharded(0)
  %row_1 = own_slice(%row) {axis=0, group_size=2} : f32[2,1] sharded(0)
  %b = jax.mul(%a, %row_1) {out_dtype=none} : f32[2,3] sharded(0)
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

# title: a guard over all gradients: slices are looked at, then what the replicas have seen
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4] mirrored = @m, %x: f32[4] per_replica) {
  %g = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %finite = jax.is_finite(%g) : bool[4] mirrored
  %all = jax.reduce_and(%finite) {axes=(0,)} : bool[] mirrored
  %large = jax.gt(%g, %m) : bool[4] mirrored
  %any = jax.reduce_or(%large) {axes=(0,)} : bool[] mirrored
  %both = jax.and(%all, %any) : bool[] mirrored
  %sum = jax.add(%m, %g) : f32[4] mirrored
  %new = jax.select_n(%both, %m, %sum) : f32[4] mirrored
  return %new -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %g = reduce_scatter(%x) {reducer="mean", axis=0, group_size=2} : f32[2] sharded(0)
  %finite = jax.is_finite(%g) : bool[2] sharded(0)
  %large = jax.gt(%g, %m) : bool[2] sharded(0)
  %all = jax.reduce_and(%finite) {axes=(0,)} : bool[] per_replica
  %all_1 = all_reduce(%all) {reducer="min", group_size=2} : bool[] mirrored
  %any = jax.reduce_or(%large) {axes=(0,)} : bool[] per_replica
  %any_1 = all_reduce(%any) {reducer="max", group_size=2} : bool[] mirrored
  %both = jax.and(%all_1, %any_1) : bool[] mirrored
  %sum = jax.add(%m, %g) : f32[2] sharded(0)
  %new = jax.select_n(%both, %m, %sum) : f32[2] sharded(0)
  return %new -> @m
}

# title: left alone: and of integers, which is of each bit
graph f on 2 replicas, stage spmd
  variable @m: i32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: i32[4] mirrored = @m, %x: i32[4] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : i32[4] mirrored
  %bits = jax.reduce_and(%g) {axes=(0,)} : i32[] mirrored
  %new = jax.add(%g, %bits) : i32[4] mirrored
  return %new -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: i32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: i32[4] mirrored = @m, %x: i32[4] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : i32[4] mirrored
  %bits = jax.reduce_and(%g) {axes=(0,)} : i32[] mirrored
  %new = jax.add(%g, %bits) : i32[4] mirrored
  return %new -> @m
}

# title: branches on one value take slices and return them; one returns numbers that all slices share
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4] mirrored = @m, %w: f32[4] mirrored = @w, %x: f32[4] per_replica, %i: i32[] mirrored) {
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[4] per_replica
  %g = all_reduce(%y) {reducer="sum", group_size=2} : f32[4] mirrored
  %update, %slot = cond(%i, %g, %m) : f32[4] mirrored, f32[4] mirrored
    branch_0(%g0: f32[4] mirrored, %m0: f32[4] mirrored) {
      %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
      return %zeros, %m0
    }
    branch_1(%g1: f32[4] mirrored, %m1: f32[4] mirrored) {
      %sum = jax.add(%m1, %g1) : f32[4] mirrored
      return %sum, %sum
    }
  %new = jax.sub(%w, %update) : f32[4] mirrored
  return %slot -> @m, %new -> @w
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[2] sharded(0) = @m, %w: f32[4] mirrored = @w, %x: f32[4] per_replica, %i: i32[] mirrored) {
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[4] per_replica
  %g = reduce_scatter(%y) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
  %update, %slot = cond(%i, %g, %m) : f32[2] sharded(0), f32[2] sharded(0)
    branch_0(%g0: f32[2] sharded(0), %m0: f32[2] sharded(0)) {
      %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
      return %zeros, %m0
    }
    branch_1(%g1: f32[2] sharded(0), %m1: f32[2] sharded(0)) {
      %sum = jax.add(%m1, %g1) : f32[2] sharded(0)
      return %sum, %sum
    }
  %w_1 = own_slice(%w) {axis=0, group_size=2} : f32[2] sharded(0)
  %new = jax.sub(%w_1, %update) : f32[2] sharded(0)
  %new_1 = all_gather(%new) {axis=0, group_size=2} : f32[4] mirrored
  return %slot -> @m, %new_1 -> @w
}

# title: a norm in a branch in a branch: all replicas get there, so they reduce it there
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4] mirrored = @m, %x: f32[4] per_replica, %i: i32[] mirrored) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %new = cond(%i, %m, %g, %i) : f32[4] mirrored
    branch_0(%m0: f32[4] mirrored, %g0: f32[4] mirrored, %i0: i32[] mirrored) {
      return %m0
    }
    branch_1(%m1: f32[4] mirrored, %g1: f32[4] mirrored, %i1: i32[] mirrored) {
      %inner = cond(%i1, %m1, %g1) : f32[4] mirrored
        branch_0(%m2: f32[4] mirrored, %g2: f32[4] mirrored) {
          return %g2
        }
        branch_1(%m3: f32[4] mirrored, %g3: f32[4] mirrored) {
          %largest = jax.reduce_max(%g3) {axes=(0,), out_sharding=none} : f32[] mirrored
          %scaled = jax.mul(%m3, %largest) {out_dtype=none} : f32[4] mirrored
          return %scaled
        }
      return %inner
    }
  return %new -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica, %i: i32[] mirrored) {
  %g = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
  %new = cond(%i, %m, %g, %i) : f32[2] sharded(0)
    branch_0(%m0: f32[2] sharded(0), %g0: f32[2] sharded(0), %i0: i32[] mirrored) {
      return %m0
    }
    branch_1(%m1: f32[2] sharded(0), %g1: f32[2] sharded(0), %i1: i32[] mirrored) {
      %inner = cond(%i1, %m1, %g1) : f32[2] sharded(0)
        branch_0(%m2: f32[2] sharded(0), %g2: f32[2] sharded(0)) {
          return %g2
        }
        branch_1(%m3: f32[2] sharded(0), %g3: f32[2] sharded(0)) {
          %largest = jax.reduce_max(%g3) {axes=(0,), out_sharding=none} : f32[] per_replica
          %largest_1 = all_reduce(%largest) {reducer="max", group_size=2} : f32[] mirrored
          %scaled = jax.mul(%m3, %largest_1) {out_dtype=none} : f32[2] sharded(0)
          return %scaled
        }
      return %inner
    }
  return %new -> @m
}

# title: what no branch takes and nothing uses is left out; a branch that sorts cuts what it has sorted
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4] mirrored = @m, %x: f32[4] per_replica, %y: f32[4] mirrored, %i: i32[] mirrored) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %most = jax.max(%y, %y) : f32[4] mirrored
  %new, %unused = cond(%i, %m, %g, %most, %y) : f32[4] mirrored, f32[4] mirrored
    branch_0(%m0: f32[4] mirrored, %g0: f32[4] mirrored, %a0: f32[4] mirrored, %b0: f32[4] mirrored) {
      %sum = jax.add(%m0, %g0) : f32[4] mirrored
      return %sum, %a0
    }
    branch_1(%m1: f32[4] mirrored, %g1: f32[4] mirrored, %a1: f32[4] mirrored, %b1: f32[4] mirrored) {
      %sorted = jax.sort(%b1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
      return %sorted, %a1
    }
  return %new -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica, %y: f32[4] mirrored, %i: i32[] mirrored) {
  %g = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
  %0 = cond(%i, %m, %g, %y) : f32[2] sharded(0)
    branch_0(%m0: f32[2] sharded(0), %g0: f32[2] sharded(0), %b0: f32[4] mirrored) {
      %sum = jax.add(%m0, %g0) : f32[2] sharded(0)
      return %sum
    }
    branch_1(%m1: f32[2] sharded(0), %g1: f32[2] sharded(0), %b1: f32[4] mirrored) {
      %sorted = jax.sort(%b1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
      %sorted_1 = own_slice(%sorted) {axis=0, group_size=2} : f32[2] sharded(0)
      return %sorted_1
    }
  return %0 -> @m
}

# title: left alone: branches that replicas choose for themselves, and one that sorts the gradient
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @n: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4] mirrored = @m, %n: f32[4] mirrored = @n, %x: f32[4] per_replica, %i: i32[] mirrored, %own: i32[] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %a = cond(%i, %m, %g) : f32[4] mirrored
    branch_0(%m0: f32[4] mirrored, %g0: f32[4] mirrored) {
      return %m0
    }
    branch_1(%m1: f32[4] mirrored, %g1: f32[4] mirrored) {
      %sorted = jax.sort(%g1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
      return %sorted
    }
  %h = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %b = cond(%own, %n, %h) : f32[4] per_replica
    branch_0(%n0: f32[4] mirrored, %h0: f32[4] mirrored) {
      return %n0
    }
    branch_1(%n1: f32[4] mirrored, %h1: f32[4] mirrored) {
      return %h1
    }
  %c = all_reduce(%b) {reducer="mean", group_size=2} : f32[4] mirrored
  return %a -> @m, %h -> @n, %c
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @n: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4] mirrored = @m, %n: f32[4] mirrored = @n, %x: f32[4] per_replica, %i: i32[] mirrored, %own: i32[] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %a = cond(%i, %m, %g) : f32[4] mirrored
    branch_0(%m0: f32[4] mirrored, %g0: f32[4] mirrored) {
      return %m0
    }
    branch_1(%m1: f32[4] mirrored, %g1: f32[4] mirrored) {
      %sorted = jax.sort(%g1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
      return %sorted
    }
  %h = all_reduce(%x) {reducer="mean", group_size=2} : f32[4] mirrored
  %b = cond(%own, %n, %h) : f32[4] per_replica
    branch_0(%n0: f32[4] mirrored, %h0: f32[4] mirrored) {
      return %n0
    }
    branch_1(%n1: f32[4] mirrored, %h1: f32[4] mirrored) {
      return %h1
    }
  %c = all_reduce(%b) {reducer="mean", group_size=2} : f32[4] mirrored
  return %a -> @m, %h -> @n, %c
}

# title: a sum of products of what was flattened; what meets slices there is stored in slices
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @first: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[3,4] mirrored = @w, %first: f32[3,4] mirrored = @first, %x: f32[3,4] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[3,4] mirrored
  %way = jax.sub(%first, %w) : f32[3,4] mirrored
  %a = jax.reshape(%g) {new_sizes=(12,), dimensions=none, sharding=none} : f32[12] mirrored
  %b = jax.reshape(%way) {new_sizes=(12,), dimensions=none, sharding=none} : f32[12] mirrored
  %far = jax.dot_general(%a, %b) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[] mirrored
  %step = jax.mul(%g, %far) {out_dtype=none} : f32[3,4] mirrored
  %new = jax.sub(%w, %step) : f32[3,4] mirrored
  return %new -> @w, %first -> @first
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @first: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[3,4] mirrored = @w, %first: f32[3,4] mirrored = @first, %x: f32[3,4] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[3,4] mirrored
  %way = jax.sub(%first, %w) : f32[3,4] mirrored
  %a = jax.reshape(%g) {new_sizes=(12,), dimensions=none, sharding=none} : f32[12] mirrored
  %b = jax.reshape(%way) {new_sizes=(12,), dimensions=none, sharding=none} : f32[12] mirrored
  %far = jax.dot_general(%a, %b) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[] mirrored
  %step = jax.mul(%g, %far) {out_dtype=none} : f32[3,4] mirrored
  %new = jax.sub(%w, %step) : f32[3,4] mirrored
  return %new -> @w, %first -> @first
}

# title: what an operation needs whole is gathered, if nothing else of the gradient is sent: the slot is stored in slices
graph f on 2 replicas, stage spmd
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[4] mirrored = @w, %m: f32[4] mirrored = @m, %x: f32[4] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %m2 = jax.add(%m, %g) : f32[4] mirrored
  %ahead = jax.add(%m2, %g) : f32[4] mirrored
  %sorted = jax.sort(%ahead) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %new = jax.sub(%w, %sorted) : f32[4] mirrored
  return %new -> @w, %m2 -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%w: f32[4] mirrored = @w, %m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %g = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
  %m2 = jax.add(%m, %g) : f32[2] sharded(0)
  %ahead = jax.add(%m2, %g) : f32[2] sharded(0)
  %ahead_1 = all_gather(%ahead) {axis=0, group_size=2} : f32[4] mirrored
  %sorted = jax.sort(%ahead_1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %new = jax.sub(%w, %sorted) : f32[4] mirrored
  return %new -> @w, %m2 -> @m
}

# title: the same where an earlier program stored the slot in slices
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %whole = all_gather(%m) {axis=0, group_size=2} : f32[4] mirrored
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %m2 = jax.add(%whole, %g) : f32[4] mirrored
  %sorted = jax.sort(%m2) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %own = own_slice(%m2) {axis=0, group_size=2} : f32[2] sharded(0)
  return %own -> @m, %sorted
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: f32[2] sharded(0) = @m, %x: f32[4] per_replica) {
  %g = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
  %m2 = jax.add(%m, %g) : f32[2] sharded(0)
  %m2_1 = all_gather(%m2) {axis=0, group_size=2} : f32[4] mirrored
  %sorted = jax.sort(%m2_1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  return %m2 -> @m, %sorted
}

# title: left alone: two values are wanted whole, or a parameter would be gathered too
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[4] mirrored = @m, %w: f32[4] mirrored = @w, %x: f32[4] per_replica) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %m2 = jax.add(%m, %g) : f32[4] mirrored
  %one = jax.sort(%m2) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %double = jax.add(%m2, %m2) : f32[4] mirrored
  %other = jax.sort(%double) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[4] per_replica
  %h = all_reduce(%y) {reducer="sum", group_size=2} : f32[4] mirrored
  %half = jax.mul(%h, 0.5:f32) {out_dtype=none} : f32[4] mirrored
  %third = jax.sort(%half) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %new = jax.sub(%w, %half) : f32[4] mirrored
  return %m2 -> @m, %new -> @w, %one, %other, %third
}
-->
graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%m: f32[2] sharded(0) = @m, %w: f32[4] mirrored = @w, %x: f32[4] per_replica) {
  %g = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[2] sharded(0)
  %m2 = jax.add(%m, %g) : f32[2] sharded(0)
  %m2_1 = all_gather(%m2) {axis=0, group_size=2} : f32[4] mirrored
  %one = jax.sort(%m2_1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %double = jax.add(%m2_1, %m2_1) : f32[4] mirrored
  %other = jax.sort(%double) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %y = jax.mul(%w, %x) {out_dtype=none} : f32[4] per_replica
  %h = all_reduce(%y) {reducer="sum", group_size=2} : f32[4] mirrored
  %half = jax.mul(%h, 0.5:f32) {out_dtype=none} : f32[4] mirrored
  %third = jax.sort(%half) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
  %new = jax.sub(%w, %half) : f32[4] mirrored
  return %m2 -> @m, %new -> @w, %one, %other, %third
}

# title: groups of replicas: the sum is of all, the norm of one group's slices
graph f on 4 replicas in 2 groups, stage spmd
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%w: f32[2,3] sharded(0) over member = @w, %x: f32[4,3] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2, num_groups=2} : f32[4,3] mirrored
  %y = jax.mul(%full, %x) {out_dtype=none} : f32[4,3] per_replica
  %g = all_reduce(%y) {reducer="mean", group_size=4} : f32[4,3] mirrored
  %square = jax.mul(%g, %g) {out_dtype=none} : f32[4,3] mirrored
  %total = jax.reduce_sum(%square) {axes=(0, 1), out_sharding=none} : f32[] mirrored
  %clipped = jax.div(%g, %total) : f32[4,3] mirrored
  %new = jax.sub(%full, %clipped) : f32[4,3] mirrored
  %slice = own_slice(%new) {axis=0, group_size=2, num_groups=2} : f32[2,3] sharded(0) over member
  return %slice -> @w
}
-->
graph f on 4 replicas in 2 groups, stage spmd
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%w: f32[2,3] sharded(0) over member = @w, %x: f32[4,3] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2, num_groups=2} : f32[4,3] mirrored
  %y = jax.mul(%full, %x) {out_dtype=none} : f32[4,3] per_replica
  %g = reduce_scatter(%y) {reducer="mean", axis=0, group_size=2, num_groups=2} : f32[2,3] sharded(0) over member
  %square = jax.mul(%g, %g) {out_dtype=none} : f32[2,3] sharded(0) over member
  %total = jax.reduce_sum(%square) {axes=(0, 1), out_sharding=none} : f32[] per_replica
  %total_1 = all_reduce(%total) {reducer="sum", group_size=2, num_groups=2} : f32[] mirrored
  %clipped = jax.div(%g, %total_1) : f32[2,3] sharded(0) over member
  %new = jax.sub(%w, %clipped) : f32[2,3] sharded(0) over member
  return %new -> @w
}

# title: two widenings, the wide value is used by others too
graph f on 3 replicas, stage spmd
(%x: i8[2,3] per_replica) {
  %a = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,3] per_replica
  %b = jax.convert_element_type(%a) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,3] per_replica
  %all = all_gather(%b) {axis=1, group_size=3} : f32[2,9] mirrored
  %s = jax.sin(%b) {accuracy=none} : f32[2,3] per_replica
  return %all, per_replica %s
}
-->
graph f on 3 replicas, stage spmd
(%x: i8[2,3] per_replica) {
  %a = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,3] per_replica
  %b = jax.convert_element_type(%a) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,3] per_replica
  %s = jax.sin(%b) {accuracy=none} : f32[2,3] per_replica
  %all = all_gather(%b) {axis=1, group_size=3} : f32[2,9] mirrored
  return %all, per_replica %s
}

# title: slices stay slices, stages stay stages
graph f on 4 replicas, stage spmd
(%x: f32[4] per_replica, %y: f16[3] per_replica) {
  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=4} : f32[1] sharded(0)
  %n = jax.convert_element_type(%s) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[1] sharded(0)
  %w = jax.convert_element_type(%n) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[1] sharded(0)
  %all = all_gather(%w) {axis=0, group_size=4} : f32[4] mirrored
  %v = jax.convert_element_type(%y) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[3] per_replica
  %many = all_gather(%v) {axis=0, group_size=4, stages=(2, 2)} : f32[12] mirrored
  return %all, %many
}
-->
graph f on 4 replicas, stage spmd
(%x: f32[4] per_replica, %y: f16[3] per_replica) {
  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=4} : f32[1] sharded(0)
  %n = jax.convert_element_type(%s) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[1] sharded(0)
  %w = jax.convert_element_type(%n) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[1] sharded(0)
  %v = jax.convert_element_type(%y) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[3] per_replica
  %all = all_gather(%w) {axis=0, group_size=4} : f32[4] mirrored
  %many = all_gather(%v) {axis=0, group_size=4, stages=(2, 2)} : f32[12] mirrored
  return %all, %many
}

# title: a flag in a loop
graph f on 2 replicas, stage spmd
(%x: bool[3,2] per_replica) {
  %c = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored
    body(%t: f32[] mirrored, %row: bool[2] per_replica) {
      %w = jax.convert_element_type(%row) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2] per_replica
      %all = all_gather(%w) {axis=0, group_size=2} : f32[4] mirrored
      %s = jax.reduce_max(%all) {axes=(0,), out_sharding=none} : f32[] mirrored
      %n = jax.add(%t, %s) {out_sharding=none} : f32[] mirrored
      return %n
    }
  return %c
}
-->
graph f on 2 replicas, stage spmd
(%x: bool[3,2] per_replica) {
  %c = scan(0.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] mirrored
    body(%t: f32[] mirrored, %row: bool[2] per_replica) {
      %w = jax.convert_element_type(%row) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2] per_replica
      %all = as_shard(%w) {axis=0, group_size=2} : f32[2] sharded(0)
      %s = jax.reduce_max(%all) {axes=(0,), out_sharding=none} : f32[] per_replica
      %s_1 = all_reduce(%s) {reducer="max", group_size=2} : f32[] mirrored
      %n = jax.add(%t, %s_1) {out_sharding=none} : f32[] mirrored
      return %n
    }
  return %c
}

# title: a value that is used in a narrower dtype is narrowed before it is gathered
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %all = all_gather(%x) {axis=0, group_size=2} : f32[8] mirrored
  %n = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[8] mirrored
  %s = jax.sin(%n) {accuracy=none} : bf16[8] mirrored
  return %s
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %all = as_shard(%x) {axis=0, group_size=2} : f32[4] sharded(0)
  %n = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] sharded(0)
  %s = jax.sin(%n) {accuracy=none} : bf16[4] sharded(0)
  %s_1 = all_gather(%s) {axis=0, group_size=2} : bf16[8] mirrored
  return %s_1
}

# title: a slice of a variable is narrowed twice, the gather stays in its stages
graph f on 4 replicas, stage spmd
  variable @w: f32[8] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2] sharded(0) = @w) {
  %all = all_gather(%w) {axis=0, group_size=4, stages=(2, 2)} : f32[8] mirrored
  %n = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[8] mirrored
  %i = jax.convert_element_type(%n) {new_dtype=dtype<i8>, weak_type=false, sharding=none} : i8[8] mirrored
  return %i
}
-->
graph f on 4 replicas, stage spmd
  variable @w: f32[8] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2] sharded(0) = @w) {
  %n = jax.convert_element_type(%w) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2] sharded(0)
  %i = jax.convert_element_type(%n) {new_dtype=dtype<i8>, weak_type=false, sharding=none} : i8[2] sharded(0)
  %i_1 = all_gather(%i) {axis=0, group_size=4} : i8[8] mirrored
  return %i_1
}

# title: left alone: a gathered value that something else uses too
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = all_gather(%x) {axis=0, group_size=2} : f32[8] mirrored
  %n = jax.convert_element_type(%a) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[8] mirrored
  %b = all_gather(%y) {axis=0, group_size=2} : f32[8] mirrored
  %m = jax.convert_element_type(%b) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[8] mirrored
  %s = jax.sin(%b) {accuracy=none} : f32[8] mirrored
  return %a, %n, %m, %s
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = all_gather(%x) {axis=0, group_size=2} : f32[8] mirrored
  %n = jax.convert_element_type(%a) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[8] mirrored
  %b = all_gather(%y) {axis=0, group_size=2} : f32[8] mirrored
  %m = jax.convert_element_type(%b) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[8] mirrored
  %s = jax.sin(%b) {accuracy=none} : f32[8] mirrored
  return %a, %n, %m, %s
}

# title: the small constant is gathered in front of the loop, the large one in each step
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %v: f32[2] sharded(0), %x: f32[3,4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %y, %zs = scan(%all, %v, 2.0:f32, %x) {num_consts=2, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[3,4] per_replica
    body(%w0: f32[4,4] mirrored, %v0: f32[2] sharded(0), %c: f32[] mirrored, %row: f32[4] per_replica) {
      %v_all = all_gather(%v0) {axis=0, group_size=2} : f32[4] mirrored
      %p = jax.dot_general(%row, %w0) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %q = jax.add(%p, %v_all) : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %q
    }
  return %y, per_replica %zs
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %v: f32[2] sharded(0), %x: f32[3,4] per_replica) {
  %y, %zs = scan(%w, %v, 2.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=2, num_carry=1} : f32[] mirrored, f32[3,4] per_replica
    body(%w0: f32[2,4] sharded(0), %v0: f32[2] sharded(0), %c: f32[] mirrored, %row: f32[4] per_replica) {
      %w0_1 = all_gather(%w0) {axis=0, group_size=2} : f32[4,4] mirrored
      %p = jax.dot_general(%row, %w0_1) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %v_all = all_gather(%v0) {axis=0, group_size=2} : f32[4] mirrored
      %q = jax.add(%p, %v_all) : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %q
    }
  return %y, per_replica %zs
}

# title: what a loop in a loop takes apart, and what is used in slices too
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: f32[2,4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4] mirrored
  %y, %zs = scan(%all, %w, 2.0:f32, %x) {num_consts=2, num_carry=1, length=2, reverse=false, unroll=1} : f32[] mirrored, f32[2,4] per_replica
    body(%w0: f32[3,4] mirrored, %s: f32[3,2] sharded(1), %c: f32[] mirrored, %row: f32[4] per_replica) {
      %z = scan(%row, %w0) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica
        body(%h: f32[4] per_replica, %layer: f32[4] mirrored) {
          %p = jax.mul(%h, %layer) {out_dtype=none} : f32[4] per_replica
          return %p
        }
      %t = jax.reduce_sum(%s) {axes=(0, 1), out_sharding=none} : f32[] per_replica
      %u = jax.mul(%z, %t) {out_dtype=none} : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %u
    }
  return %y, per_replica %zs
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2] sharded(1), %x: f32[2,4] per_replica) {
  %y, %zs = scan(%w, %w, 2.0:f32, %x) {length=2, reverse=false, unroll=1, num_consts=2, num_carry=1} : f32[] mirrored, f32[2,4] per_replica
    body(%w0: f32[3,2] sharded(1), %s: f32[3,2] sharded(1), %c: f32[] mirrored, %row: f32[4] per_replica) {
      %z = scan(%row, %w0) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica
        body(%h: f32[4] per_replica, %layer: f32[2] sharded(0)) {
          %layer_1 = all_gather(%layer) {axis=0, group_size=2} : f32[4] mirrored
          %p = jax.mul(%h, %layer_1) {out_dtype=none} : f32[4] per_replica
          return %p
        }
      %t = jax.reduce_sum(%s) {axes=(0, 1), out_sharding=none} : f32[] per_replica
      %u = jax.mul(%z, %t) {out_dtype=none} : f32[4] per_replica
      %d = jax.mul(%c, 0.5:f32) {out_dtype=none} : f32[] mirrored
      return %d, %u
    }
  return %y, per_replica %zs
}

# title: the loop says that it gathers in each step, whatever the memory
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[8,4] mirrored
  %y = scan(%all, %h, %x) {num_consts=1, num_carry=1, length=8, reverse=false, unroll=1, gather="each"} : f32[4] per_replica
    body(%w_in: f32[8,4] mirrored, %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %0 = jax.reduce_sum(%w_in) {axes=(0,), out_sharding=none} : f32[4] mirrored
      %1 = jax.mul(%h_in, %0) {out_dtype=none} : f32[4] per_replica
      %2 = jax.add(%1, %row) : f32[4] per_replica
      return %2
    }
  return per_replica %y
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %y = scan(%w, %h, %x) {length=8, reverse=false, unroll=1, gather="each", num_consts=1, num_carry=1} : f32[4] per_replica
    body(%w_in: f32[4,4] sharded(0), %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %0 = jax.reduce_sum(%w_in) {axes=(0,), out_sharding=none} : f32[4] per_replica
      %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[4] mirrored
      %2 = jax.mul(%h_in, %1) {out_dtype=none} : f32[4] per_replica
      %3 = jax.add(%2, %row) : f32[4] per_replica
      return %3
    }
  return per_replica %y
}

# title: the loop says that it gathers once
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %y = scan(%w, %h, %x) {num_consts=1, num_carry=1, length=8, reverse=false, unroll=1, gather="once"} : f32[4] per_replica
    body(%w_in: f32[4,4] sharded(0), %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %all = all_gather(%w_in) {axis=0, group_size=2} : f32[8,4] mirrored
      %0 = jax.reduce_sum(%all) {axes=(0,), out_sharding=none} : f32[4] mirrored
      %1 = jax.mul(%h_in, %0) {out_dtype=none} : f32[4] per_replica
      %2 = jax.add(%1, %row) : f32[4] per_replica
      return %2
    }
  return per_replica %y
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4,4] sharded(0), %x: f32[8,4] per_replica, %h: f32[4] per_replica) {
  %y = scan(%w, %h, %x) {length=8, reverse=false, unroll=1, gather="once", num_consts=1, num_carry=1} : f32[4] per_replica
    body(%w_in: f32[4,4] sharded(0), %h_in: f32[4] per_replica, %row: f32[4] per_replica) {
      %0 = jax.reduce_sum(%w_in) {axes=(0,), out_sharding=none} : f32[4] per_replica
      %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[4] mirrored
      %2 = jax.mul(%h_in, %1) {out_dtype=none} : f32[4] per_replica
      %3 = jax.add(%2, %row) : f32[4] per_replica
      return %3
    }
  return per_replica %y
}

# title: the slices pass the barrier
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %y = jax.dot_general(%x, %all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %x1, %w1 = jax.optimization_barrier(%x, %all) : f32[4] per_replica, f32[4,4] mirrored
  %z = jax.dot_general(%x1, %w1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  return per_replica %y, per_replica %z
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %y = jax.dot_general(%x, %all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %0, %1 = jax.optimization_barrier(%x, %w) : f32[4] per_replica, f32[2,4] sharded(0)
  %w1 = all_gather(%1) {axis=0, group_size=2} : f32[4,4] mirrored
  %z = jax.dot_general(%0, %w1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  return per_replica %y, per_replica %z
}

# title: nothing gathered passes
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored, %x: f32[4] per_replica) {
  %x1, %w1 = jax.optimization_barrier(%x, %w) : f32[4] per_replica, f32[4] mirrored
  %z = jax.add(%x1, %w1) : f32[4] per_replica
  return per_replica %z
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored, %x: f32[4] per_replica) {
  %x1, %w1 = jax.optimization_barrier(%x, %w) : f32[4] per_replica, f32[4] mirrored
  %z = jax.add(%x1, %w1) : f32[4] per_replica
  return per_replica %z
}

# title: what nothing else uses needs no barrier
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %x1, %w1 = jax.optimization_barrier(%x, %all) : f32[4] per_replica, f32[4,4] mirrored
  %z = jax.dot_general(%x1, %w1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %v1 = jax.optimization_barrier(%w1) : f32[4,4] mirrored
  return per_replica %z, %v1
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[2,4] sharded(0), %x: f32[4] per_replica) {
  %0 = jax.optimization_barrier(%x) : f32[4] per_replica
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %z = jax.dot_general(%0, %all) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  return per_replica %z, %all
}

# title: weights are gathered and gradients scattered in the loops over layers, forward and backward
graph f on 2 replicas, stage spmd
(%w: f32[3,2,4] sharded(1), %x: f32[4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4,4] mirrored
  %y, %xs = scan(%x, %all) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%h: f32[4] per_replica, %layer: f32[4,4] mirrored) {
      %product = jax.dot_general(%h, %layer) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %product, %h
    }
  %d, %gs = scan(%y, %all, %xs) {num_consts=0, num_carry=1, length=3, reverse=true, unroll=1} : f32[4] per_replica, f32[3,4,4] per_replica
    body(%g: f32[4] per_replica, %layer: f32[4,4] mirrored, %h: f32[4] per_replica) {
      %back = jax.dot_general(%g, %layer) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %outer = jax.dot_general(%h, %g) {dimension_numbers=(((), ()), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
      return %back, %outer
    }
  %s = reduce_scatter(%gs) {reducer="mean", axis=1, group_size=2} : f32[3,2,4] sharded(1)
  return per_replica %d, per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[3,2,4] sharded(1), %x: f32[4] per_replica) {
  %y, %xs = scan(%x, %w) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%h: f32[4] per_replica, %layer: f32[2,4] sharded(0)) {
      %layer_1 = all_gather(%layer) {axis=0, group_size=2} : f32[4,4] mirrored
      %product = jax.dot_general(%h, %layer_1) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      return %product, %h
    }
  %d, %gs = scan(%y, %w, %xs) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[3,4,4] per_replica
    body(%g: f32[4] per_replica, %layer_2: f32[2,4] sharded(0), %h_1: f32[4] per_replica) {
      %layer_3 = all_gather(%layer_2) {axis=0, group_size=2} : f32[4,4] mirrored
      %back = jax.dot_general(%g, %layer_3) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
      %outer = jax.dot_general(%h_1, %g) {dimension_numbers=(((), ()), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4,4] per_replica
      return %back, %outer
    }
  %s = reduce_scatter(%gs) {reducer="mean", axis=1, group_size=2} : f32[3,2,4] sharded(1)
  return per_replica %d, per_replica %s
}

# title: what moves in and what stays: slices along the loop, a value that is returned too, a constant, a loop of one step
graph f on 2 replicas, stage spmd
(%a: f32[2,4] sharded(0), %b: f32[4,2] sharded(1), %c: f32[2] sharded(0), %e: f32[1,2] sharded(1)) {
  %a_all = all_gather(%a) {axis=0, group_size=2} : f32[4,4] mirrored
  %b_all = all_gather(%b) {axis=1, group_size=2} : f32[4,4] mirrored
  %c_all = all_gather(%c) {axis=0, group_size=2} : f32[4] mirrored
  %e_all = all_gather(%e) {axis=1, group_size=2} : f32[1,4] mirrored
  %y, %ys = scan(%c_all, %c_all, %a_all, %b_all) {num_consts=1, num_carry=1, length=4, reverse=false, unroll=1} : f32[4] mirrored, f32[4,4] mirrored
    body(%c_in: f32[4] mirrored, %h: f32[4] mirrored, %a_row: f32[4] mirrored, %b_row: f32[4] mirrored) {
      %p = jax.mul(%h, %a_row) {out_dtype=none} : f32[4] mirrored
      %q = jax.add(%p, %b_row) : f32[4] mirrored
      %r = jax.add(%q, %c_in) : f32[4] mirrored
      return %r, %q
    }
  %z = scan(%y, %e_all) {num_consts=0, num_carry=1, length=1, reverse=false, unroll=1} : f32[4] mirrored
    body(%h: f32[4] mirrored, %row: f32[4] mirrored) {
      %sum = jax.add(%h, %row) : f32[4] mirrored
      return %sum
    }
  %s = reduce_scatter(%ys) {reducer="sum", axis=0, group_size=2} : f32[2,4] sharded(0)
  return %z, %b_all, per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%a: f32[2,4] sharded(0), %b: f32[4,2] sharded(1), %c: f32[2] sharded(0), %e: f32[1,2] sharded(1)) {
  %a_all = all_gather(%a) {axis=0, group_size=2} : f32[4,4] mirrored
  %a_all_1 = own_slice(%a_all) {axis=1, group_size=2} : f32[4,2] sharded(1)
  %y, %ys = scan(%c, %c, %a_all_1, %b) {length=4, reverse=false, unroll=1, num_consts=1, num_carry=1} : f32[2] sharded(0), f32[4,2] sharded(1)
    body(%c_in: f32[2] sharded(0), %h: f32[2] sharded(0), %a_row: f32[2] sharded(0), %b_row: f32[2] sharded(0)) {
      %p = jax.mul(%h, %a_row) {out_dtype=none} : f32[2] sharded(0)
      %q = jax.add(%p, %b_row) : f32[2] sharded(0)
      %r = jax.add(%q, %c_in) : f32[2] sharded(0)
      return %r, %q
    }
  %z = scan(%y, %e) {length=1, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[2] sharded(0)
    body(%h_1: f32[2] sharded(0), %row: f32[2] sharded(0)) {
      %sum = jax.add(%h_1, %row) : f32[2] sharded(0)
      return %sum
    }
  %ys_1 = all_gather(%ys) {axis=1, group_size=2} : f32[4,4] mirrored
  %s = reduce_scatter(%ys_1) {reducer="sum", axis=0, group_size=2} : f32[2,4] sharded(0)
  %z_1 = all_gather(%z) {axis=0, group_size=2} : f32[4] mirrored
  %b_all = all_gather(%b) {axis=1, group_size=2} : f32[4,4] mirrored
  return %z_1, %b_all, per_replica %s
}
