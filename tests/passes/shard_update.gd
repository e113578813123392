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
  %g = reduce_scatter(%x) {reducer="mean", group_size=2, axis=0} : f32[2] sharded(0)
  %finite = jax.is_finite(%g) : bool[2] sharded(0)
  %all = jax.reduce_and(%finite) {axes=(0,)} : bool[] per_replica
  %all_1 = all_reduce(%all) {reducer="min", group_size=2} : bool[] mirrored
  %large = jax.gt(%g, %m) : bool[2] sharded(0)
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
  %g = reduce_scatter(%y) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
  %update, %slot = cond(%i, %g, %m) : f32[2] sharded(0), f32[2] sharded(0)
    branch_0(%g0: f32[2] sharded(0), %m0: f32[2] sharded(0)) {
      %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
      return %zeros, %m0
    }
    branch_1(%g1: f32[2] sharded(0), %m1: f32[2] sharded(0)) {
      %sum = jax.add(%m1, %g1) : f32[2] sharded(0)
      return %sum, %sum
    }
  %0 = own_slice(%w) {axis=0, group_size=2} : f32[2] sharded(0)
  %new = jax.sub(%0, %update) : f32[2] sharded(0)
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
  %g = reduce_scatter(%x) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
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
  %g = reduce_scatter(%x) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
  %0 = cond(%i, %m, %g, %y) : f32[2] sharded(0)
    branch_0(%m0: f32[2] sharded(0), %g0: f32[2] sharded(0), %b0: f32[4] mirrored) {
      %sum = jax.add(%m0, %g0) : f32[2] sharded(0)
      return %sum
    }
    branch_1(%m1: f32[2] sharded(0), %g1: f32[2] sharded(0), %b1: f32[4] mirrored) {
      %sorted = jax.sort(%b1) {dimension=0, is_stable=true, num_keys=1} : f32[4] mirrored
      %1 = own_slice(%sorted) {axis=0, group_size=2} : f32[2] sharded(0)
      return %1
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
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
  variable @first: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[3,2] sharded(1) = @w, %first: f32[3,2] sharded(1) = @first, %x: f32[3,4] per_replica) {
  %g = reduce_scatter(%x) {reducer="sum", group_size=2, axis=1} : f32[3,2] sharded(1)
  %way = jax.sub(%first, %w) : f32[3,2] sharded(1)
  %far = jax.dot_general(%g, %way) {dimension_numbers=(((0, 1), (0, 1)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[] per_replica
  %far_1 = all_reduce(%far) {reducer="sum", group_size=2} : f32[] mirrored
  %step = jax.mul(%g, %far_1) {out_dtype=none} : f32[3,2] sharded(1)
  %new = jax.sub(%w, %step) : f32[3,2] sharded(1)
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
  %g = reduce_scatter(%x) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
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
  %g = reduce_scatter(%x) {reducer="sum", group_size=2, axis=0} : f32[2] sharded(0)
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

# title: groups of replicas: the sum is of all, the norm of one group's slices
graph f on 4 replicas, stage spmd
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0, num_copies=2}
(%w: f32[2,3] sharded(0, copies=2) = @w, %x: f32[4,3] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2, num_copies=2} : f32[4,3] mirrored
  %y = jax.mul(%full, %x) {out_dtype=none} : f32[4,3] per_replica
  %g = all_reduce(%y) {reducer="mean", group_size=4} : f32[4,3] mirrored
  %square = jax.mul(%g, %g) {out_dtype=none} : f32[4,3] mirrored
  %total = jax.reduce_sum(%square) {axes=(0, 1), out_sharding=none} : f32[] mirrored
  %clipped = jax.div(%g, %total) : f32[4,3] mirrored
  %new = jax.sub(%full, %clipped) : f32[4,3] mirrored
  %slice = own_slice(%new) {axis=0, group_size=2, num_copies=2} : f32[2,3] sharded(0, copies=2)
  return %slice -> @w
}
-->
graph f on 4 replicas, stage spmd
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0, num_copies=2}
(%w: f32[2,3] sharded(0, copies=2) = @w, %x: f32[4,3] per_replica) {
  %full = all_gather(%w) {axis=0, group_size=2, num_copies=2} : f32[4,3] mirrored
  %y = jax.mul(%full, %x) {out_dtype=none} : f32[4,3] per_replica
  %g = reduce_scatter(%y) {reducer="mean", group_size=2, axis=0, num_copies=2} : f32[2,3] sharded(0, copies=2)
  %square = jax.mul(%g, %g) {out_dtype=none} : f32[2,3] sharded(0, copies=2)
  %total = jax.reduce_sum(%square) {axes=(0, 1), out_sharding=none} : f32[] per_replica
  %total_1 = all_reduce(%total) {reducer="sum", group_size=2, num_copies=2} : f32[] mirrored
  %clipped = jax.div(%g, %total_1) : f32[2,3] sharded(0, copies=2)
  %new = jax.sub(%w, %clipped) : f32[2,3] sharded(0, copies=2)
  return %new -> @w
}
