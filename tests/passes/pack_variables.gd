# title: small variables that are updated alike share a buffer
graph f on 2 replicas, stage spmd
  variable @a: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @large: f32[8192] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @b: f32[2,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @c: f32[1] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @read: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true}
  variable @d: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%a: f32[2] mirrored = @a, %large: f32[8192] mirrored = @large, %b: f32[2,2] mirrored = @b, %c: f32[1] mirrored = @c, %read: f32[2] mirrored = @read, %d: f32[3] mirrored = @d) {
  %a2 = jax.mul(%a, 2.0:f32) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%b, 2.0:f32) {out_dtype=none} : f32[2,2] mirrored
  %c2 = jax.mul(%c, 2.0:f32) {out_dtype=none} : f32[1] mirrored
  %d2 = jax.mul(%d, 2.0:f32) {out_dtype=none} : f32[3] mirrored
  return %a2 -> @a, %large -> @large, %b2 -> @b, %c2 -> @c, %d2 -> @d, %b
}
-->
graph f on 2 replicas, stage spmd
  variable @pack_0: f32[10] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, pieces=("a", "b", "c", "d")}
  variable @large: f32[8192] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @read: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%pack_0: f32[10] mirrored = @pack_0, %large: f32[8192] mirrored = @large, %read: f32[2] mirrored = @read) {
  %0, %1, %2, %3 = unpack(%pack_0) {shapes=((2,), (2, 2), (1,), (3,))} : f32[2] mirrored, f32[2,2] mirrored, f32[1] mirrored, f32[3] mirrored
  %a2 = jax.mul(%0, 2.0:f32) {out_dtype=none} : f32[2] mirrored
  %b2 = jax.mul(%1, 2.0:f32) {out_dtype=none} : f32[2,2] mirrored
  %c2 = jax.mul(%2, 2.0:f32) {out_dtype=none} : f32[1] mirrored
  %d2 = jax.mul(%3, 2.0:f32) {out_dtype=none} : f32[3] mirrored
  %4 = pack(%a2, %b2, %c2, %d2) : f32[10] mirrored
  return %4 -> @pack_0, %large -> @large, %1
}

# title: variables in a pack of another program stay there, and what is between them stays as it is
graph f on 2 replicas, stage spmd
  variable @a: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, piece=("pack_0", 4, 10)}
  variable @large: f32[9] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @b: f32[2,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, piece=("pack_0", 0, 10)}
  variable @c: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, piece=("pack_0", 9, 10)}
(%a: f32[2] mirrored = @a, %large: f32[9] mirrored = @large, %b: f32[2,2] mirrored = @b, %c: f32[] mirrored = @c, %x: f32[2] mirrored) {
  %a2 = jax.add(%a, %x) : f32[2] mirrored
  %c2 = jax.mul(%c, 2.0:f32) {out_dtype=none} : f32[] mirrored
  return %a2 -> @a, %large -> @large, %c2 -> @c, %b
}
-->
graph f on 2 replicas, stage spmd
  variable @pack_0: f32[10] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, pieces=("b", "a", "", "c")}
  variable @large: f32[9] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%pack_0: f32[10] mirrored = @pack_0, %large: f32[9] mirrored = @large, %x: f32[2] mirrored) {
  %0, %1, %2, %3 = unpack(%pack_0) {shapes=((2, 2), (2,), (3,), ())} : f32[2,2] mirrored, f32[2] mirrored, f32[3] mirrored, f32[] mirrored
  %a2 = jax.add(%1, %x) : f32[2] mirrored
  %c2 = jax.mul(%3, 2.0:f32) {out_dtype=none} : f32[] mirrored
  %4 = pack(%0, %a2, %2, %c2) : f32[10] mirrored
  return %4 -> @pack_0, %large -> @large, %0
}

# title: a pack that is only read is not given back
graph f on 2 replicas, stage spmd
  variable @a: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, piece=("pack_0", 0, 4)}
(%a: f32[2] mirrored = @a) {
  return %a
}
-->
graph f on 2 replicas, stage spmd
  variable @pack_0: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, pieces=("a", "")}
(%pack_0: f32[4] mirrored = @pack_0) {
  %0, %1 = unpack(%pack_0) {shapes=((2,), (2,))} : f32[2] mirrored, f32[2] mirrored
  return %0
}

# title: a variable that is stored in slices from now on leaves its pack
graph f on 2 replicas, stage spmd
  variable @a: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @b: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, piece=("pack_0", 4, 6)}
(%a: f32[2] sharded(0) = @a, %b: f32[2] mirrored = @b) {
  return %a -> @a, %b -> @b
}
-->
graph f on 2 replicas, stage spmd
  variable @pack_0: f32[6] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, pieces=("", "b")}
  variable @a: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%pack_0: f32[6] mirrored = @pack_0, %a: f32[2] sharded(0) = @a) {
  %0, %1 = unpack(%pack_0) {shapes=((4,), (2,))} : f32[4] mirrored, f32[2] mirrored
  %2 = pack(%0, %1) : f32[6] mirrored
  return %2 -> @pack_0, %a -> @a
}

# title: what must be alone, what is updated otherwise and what is of another dtype is not packed
graph f on 2 replicas, stage spmd
  variable @a: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, alone=true}
  variable @b: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @c: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @d: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @i: i32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @on_read: f32[2] per_replica {synchronization="on_read", aggregation="sum", trainable=false, assigned=true}
(%a: f32[2] mirrored = @a, %b: f32[2] mirrored = @b, %c: f32[2] mirrored = @c, %d: f32[2] mirrored = @d, %i: i32[2] mirrored = @i, %on_read: f32[2] per_replica = @on_read) {
  %d2 = jax.sin(%d) {accuracy=none} : f32[2] mirrored
  return %a -> @a, %b -> @b, %c -> @c, %d2 -> @d, %i -> @i, %on_read -> @on_read
}
-->
graph f on 2 replicas, stage spmd
  variable @a: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, alone=true}
  variable @b: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @c: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @d: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @i: i32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @on_read: f32[2] per_replica {synchronization="on_read", aggregation="sum", trainable=false, assigned=true}
(%a: f32[2] mirrored = @a, %b: f32[2] mirrored = @b, %c: f32[2] mirrored = @c, %d: f32[2] mirrored = @d, %i: i32[2] mirrored = @i, %on_read: f32[2] per_replica = @on_read) {
  %d2 = jax.sin(%d) {accuracy=none} : f32[2] mirrored
  return %a -> @a, %b -> @b, %c -> @c, %d2 -> @d, %i -> @i, %on_read -> @on_read
}
