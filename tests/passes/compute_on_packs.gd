# title: gradients are packed and reduced as the variables lie, which are updated as one
graph f on 2 replicas, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %ga: f32[2] per_replica, %gb: f32[3] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %ra = all_reduce(%ga) {reducer="mean", group_size=2} : f32[2] mirrored
  %rb = all_reduce(%gb) {reducer="mean", group_size=2} : f32[3] mirrored
  %sa = jax.mul(0.1:f32, %ra) {out_dtype=none} : f32[2] mirrored
  %sb = jax.mul(0.1:f32, %rb) {out_dtype=none} : f32[3] mirrored
  %a2 = jax.sub(%a, %sa) : f32[2] mirrored
  %b2 = jax.sub(%b, %sb) : f32[3] mirrored
  %q = pack(%a2, %b2) : f32[5] mirrored
  return %q -> @p
}
-->
graph f on 2 replicas, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %ga: f32[2] per_replica, %gb: f32[3] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %0 = pack(%ga, %gb) : f32[5] per_replica
  %1 = all_reduce(%0) {reducer="mean", group_size=2} : f32[5] mirrored
  %2, %3 = unpack(%1) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %sa = jax.mul(0.1:f32, %2) {out_dtype=none} : f32[2] mirrored
  %sb = jax.mul(0.1:f32, %3) {out_dtype=none} : f32[3] mirrored
  %a2 = jax.sub(%a, %sa) : f32[2] mirrored
  %b2 = jax.sub(%b, %sb) : f32[3] mirrored
  %4 = jax.mul(0.1:f32, %1) {out_dtype=none} : f32[5] mirrored
  %5 = jax.sub(%p, %4) : f32[5] mirrored
  return %5 -> @p
}

# title: what is packed before it is reduced is used piece by piece too
graph f on 2 replicas, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %ga: f32[2] per_replica, %gb: f32[3] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %ra = all_reduce(%ga) {reducer="sum", group_size=2} : f32[2] mirrored
  %rb = all_reduce(%gb) {reducer="sum", group_size=2} : f32[3] mirrored
  %norm = jax.reduce_max(%ra) {axes=(0,), out_sharding=none} : f32[] mirrored
  %a2 = jax.sub(%a, %ra) : f32[2] mirrored
  %b2 = jax.sub(%b, %rb) : f32[3] mirrored
  %q = pack(%a2, %b2) : f32[5] mirrored
  return %q -> @p, %norm
}
-->
graph f on 2 replicas, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %ga: f32[2] per_replica, %gb: f32[3] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %0 = pack(%ga, %gb) : f32[5] per_replica
  %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[5] mirrored
  %2, %3 = unpack(%1) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %norm = jax.reduce_max(%2) {axes=(0,), out_sharding=none} : f32[] mirrored
  %a2 = jax.sub(%a, %2) : f32[2] mirrored
  %b2 = jax.sub(%b, %3) : f32[3] mirrored
  %4 = jax.sub(%p, %1) : f32[5] mirrored
  return %4 -> @p, %norm
}

# title: two packs share the reduced gradients
graph f on 2 replicas, stage spmd
  variable @p: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[4] mirrored = @p, %m: f32[4] mirrored = @m, %ga: f32[2] per_replica, %gb: f32[2] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %ma, %mb = unpack(%m) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %ra = all_reduce(%ga) {reducer="sum", group_size=2} : f32[2] mirrored
  %rb = all_reduce(%gb) {reducer="sum", group_size=2} : f32[2] mirrored
  %ma2 = jax.add(%ma, %ra) : f32[2] mirrored
  %mb2 = jax.add(%mb, %rb) : f32[2] mirrored
  %a2 = jax.sub(%a, %ma2) : f32[2] mirrored
  %b2 = jax.sub(%b, %mb2) : f32[2] mirrored
  %p2 = pack(%a2, %b2) : f32[4] mirrored
  %m2 = pack(%ma2, %mb2) : f32[4] mirrored
  return %p2 -> @p, %m2 -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @p: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[4] mirrored = @p, %m: f32[4] mirrored = @m, %ga: f32[2] per_replica, %gb: f32[2] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %ma, %mb = unpack(%m) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %0 = pack(%ga, %gb) : f32[4] per_replica
  %1 = all_reduce(%0) {reducer="sum", group_size=2} : f32[4] mirrored
  %2, %3 = unpack(%1) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %ma2 = jax.add(%ma, %2) : f32[2] mirrored
  %mb2 = jax.add(%mb, %3) : f32[2] mirrored
  %a2 = jax.sub(%a, %ma2) : f32[2] mirrored
  %b2 = jax.sub(%b, %mb2) : f32[2] mirrored
  %4 = jax.add(%m, %1) : f32[4] mirrored
  %5 = jax.sub(%p, %4) : f32[4] mirrored
  return %5 -> @p, %4 -> @m
}

# title: a broadcast of one number becomes longer
graph f on 1 replica, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %x: f32[] mirrored) {
  %a, %b = unpack(%p) {shapes=((2,), (3, 1))} : f32[2] mirrored, f32[3,1] mirrored
  %xa = jax.broadcast_in_dim(%x) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
  %xb = jax.broadcast_in_dim(%x) {shape=(3, 1), broadcast_dimensions=(), sharding=none} : f32[3,1] mirrored
  %a2 = jax.mul(%a, %xa) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%b, %xb) {out_dtype=none} : f32[3,1] mirrored
  %q = pack(%a2, %b2) : f32[5] mirrored
  return %q -> @p
}
-->
graph f on 1 replica, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %x: f32[] mirrored) {
  %a, %b = unpack(%p) {shapes=((2,), (3, 1))} : f32[2] mirrored, f32[3,1] mirrored
  %xa = jax.broadcast_in_dim(%x) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
  %xb = jax.broadcast_in_dim(%x) {shape=(3, 1), broadcast_dimensions=(), sharding=none} : f32[3,1] mirrored
  %a2 = jax.mul(%a, %xa) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%b, %xb) {out_dtype=none} : f32[3,1] mirrored
  %0 = jax.broadcast_in_dim(%x) {shape=(5,), broadcast_dimensions=(), sharding=none} : f32[5] mirrored
  %1 = jax.mul(%p, %0) {out_dtype=none} : f32[5] mirrored
  return %1 -> @p
}

# title: one row of other values is packed in place of the new ones
graph f on 1 replica, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %x: f32[2] mirrored, %y: f32[3] mirrored) {
  %a, %b = unpack(%p) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %sx = jax.sin(%x) {accuracy=none} : f32[2] mirrored
  %sy = jax.sin(%y) {accuracy=none} : f32[3] mirrored
  %a2 = jax.mul(%a, %sx) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%b, %sy) {out_dtype=none} : f32[3] mirrored
  %q = pack(%a2, %b2) : f32[5] mirrored
  return %q -> @p
}
-->
graph f on 1 replica, stage spmd
  variable @p: f32[5] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[5] mirrored = @p, %x: f32[2] mirrored, %y: f32[3] mirrored) {
  %a, %b = unpack(%p) {shapes=((2,), (3,))} : f32[2] mirrored, f32[3] mirrored
  %sx = jax.sin(%x) {accuracy=none} : f32[2] mirrored
  %sy = jax.sin(%y) {accuracy=none} : f32[3] mirrored
  %a2 = jax.mul(%a, %sx) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%b, %sy) {out_dtype=none} : f32[3] mirrored
  %0 = pack(%x, %y) : f32[5] mirrored
  %1 = jax.sin(%0) {accuracy=none} : f32[5] mirrored
  %2 = jax.mul(%p, %1) {out_dtype=none} : f32[5] mirrored
  return %2 -> @p
}

# title: numbers in a pack, to which one number is added, which takes as many places
graph f on 1 replica, stage spmd
  variable @p: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[2] mirrored = @p, %x: f32[] mirrored) {
  %a, %b = unpack(%p) {shapes=((), ())} : f32[] mirrored, f32[] mirrored
  %a2 = jax.add(%a, %x) : f32[] mirrored
  %b2 = jax.add(%b, %x) : f32[] mirrored
  %q = pack(%a2, %b2) : f32[2] mirrored
  return %q -> @p
}
-->
graph f on 1 replica, stage spmd
  variable @p: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[2] mirrored = @p, %x: f32[] mirrored) {
  %a, %b = unpack(%p) {shapes=((), ())} : f32[] mirrored, f32[] mirrored
  %a2 = jax.add(%a, %x) : f32[] mirrored
  %b2 = jax.add(%b, %x) : f32[] mirrored
  %0 = pack(%x, %x) : f32[2] mirrored
  %1 = jax.add(%p, %0) : f32[2] mirrored
  return %1 -> @p
}

# title: left alone: two rows of other values, what differs from piece to piece
graph f on 1 replica, stage spmd
  variable @p: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @o: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[4] mirrored = @p, %o: f32[4] mirrored = @o, %x: f32[2] mirrored, %y: f32[2] mirrored) {
  %a, %b = unpack(%p) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %c, %d = unpack(%o) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %a2 = jax.mul(%x, %y) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%y, %a) {out_dtype=none} : f32[2] mirrored
  %c2 = jax.mul(%c, 2.0:f32) {out_dtype=none} : f32[2] mirrored
  %d2 = jax.mul(%d, 3.0:f32) {out_dtype=none} : f32[2] mirrored
  %p2 = pack(%a2, %b2) : f32[4] mirrored
  %o2 = pack(%c2, %d2) : f32[4] mirrored
  return %p2 -> @p, %o2 -> @o
}
-->
graph f on 1 replica, stage spmd
  variable @p: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @o: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[4] mirrored = @p, %o: f32[4] mirrored = @o, %x: f32[2] mirrored, %y: f32[2] mirrored) {
  %a, %b = unpack(%p) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %c, %d = unpack(%o) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %a2 = jax.mul(%x, %y) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%y, %a) {out_dtype=none} : f32[2] mirrored
  %c2 = jax.mul(%c, 2.0:f32) {out_dtype=none} : f32[2] mirrored
  %d2 = jax.mul(%d, 3.0:f32) {out_dtype=none} : f32[2] mirrored
  %p2 = pack(%a2, %b2) : f32[4] mirrored
  %o2 = pack(%c2, %d2) : f32[4] mirrored
  return %p2 -> @p, %o2 -> @o
}

# title: left alone: pieces in another order, a reduction that needs another one of the row
graph f on 2 replicas, stage spmd
  variable @p: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @o: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[4] mirrored = @p, %o: f32[4] mirrored = @o, %x: f32[2] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %ra = all_reduce(%x) {reducer="sum", group_size=2} : f32[2] mirrored
  %y = jax.mul(%ra, %x) {out_dtype=none} : f32[2] per_replica
  %rb = all_reduce(%y) {reducer="sum", group_size=2} : f32[2] mirrored
  %p2 = pack(%b, %a) : f32[4] mirrored
  %o2 = pack(%ra, %rb) : f32[4] mirrored
  return %p2 -> @p, %o2 -> @o
}
-->
graph f on 2 replicas, stage spmd
  variable @p: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @o: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%p: f32[4] mirrored = @p, %o: f32[4] mirrored = @o, %x: f32[2] per_replica) {
  %a, %b = unpack(%p) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  %ra = all_reduce(%x) {reducer="sum", group_size=2} : f32[2] mirrored
  %y = jax.mul(%ra, %x) {out_dtype=none} : f32[2] per_replica
  %rb = all_reduce(%y) {reducer="sum", group_size=2} : f32[2] mirrored
  %p2 = pack(%b, %a) : f32[4] mirrored
  %o2 = pack(%ra, %rb) : f32[4] mirrored
  return %p2 -> @p, %o2 -> @o
}
