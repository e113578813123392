# title: constants of a scaled loss, a mean and an accumulation are one factor
graph f on 2 replicas, stage spmd
(%g: f32[4] per_replica) {
  %unscaled = jax.div(%g, 1024.0:f32) : f32[4] per_replica
  %mean = all_reduce(%unscaled) {reducer="mean", group_size=2} : f32[4] mirrored
  %each = jax.div(%mean, 4.0:f32) : f32[4] mirrored
  %step = jax.mul(0.5:f32, %each) {out_dtype=none} : f32[4] mirrored
  %down = jax.neg(%step) : f32[4] mirrored
  return %down
}
-->
graph f on 2 replicas, stage spmd
(%g: f32[4] per_replica) {
  %unscaled = jax.div(%g, 1024.0:f32) : f32[4] per_replica
  %0 = all_reduce(%g) {reducer="mean", group_size=2} : f32[4] mirrored
  %unscaled_1 = jax.div(%0, 1024.0:f32) : f32[4] mirrored
  %each = scale(%0) {factor=0.000244140625} : f32[4] mirrored
  %step = scale(%0) {factor=0.0001220703125} : f32[4] mirrored
  %down = scale(%0) {factor=-0.0001220703125} : f32[4] mirrored
  return %down
}

# title: behind a broadcast, a transpose and a factor that all replicas share
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica, %w: f32[2,3] mirrored) {
  %rows = jax.broadcast_in_dim(%x) {shape=(2, 3), broadcast_dimensions=(1,), sharding=none} : f32[2,3] per_replica
  %scaled = jax.mul(%rows, %w) {out_dtype=none} : f32[2,3] per_replica
  %turned = jax.transpose(%scaled) {permutation=(1, 0)} : f32[3,2] per_replica
  %sum = all_reduce(%turned) {reducer="sum", group_size=2} : f32[3,2] mirrored
  return %sum
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica, %w: f32[2,3] mirrored) {
  %rows = jax.broadcast_in_dim(%x) {shape=(2, 3), broadcast_dimensions=(1,), sharding=none} : f32[2,3] per_replica
  %scaled = jax.mul(%rows, %w) {out_dtype=none} : f32[2,3] per_replica
  %turned = jax.transpose(%scaled) {permutation=(1, 0)} : f32[3,2] per_replica
  %0 = all_reduce(%x) {reducer="sum", group_size=2} : f32[3] mirrored
  %rows_1 = jax.broadcast_in_dim(%0) {shape=(2, 3), broadcast_dimensions=(1,), sharding=none} : f32[2,3] mirrored
  %scaled_1 = jax.mul(%rows_1, %w) {out_dtype=none} : f32[2,3] mirrored
  %turned_1 = jax.transpose(%scaled_1) {permutation=(1, 0)} : f32[3,2] mirrored
  return %turned_1
}

# title: left alone: other reducers, what is used twice, unequal factors, float16, integers
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica, %y: f32[2] per_replica, %h: f16[2] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[2] mirrored
  %b = all_reduce(%y) {reducer="mean", group_size=2} : f32[2] mirrored
  %c = jax.add(%a, %b) : f32[2] mirrored
  %d = jax.mul(%x, %y) {out_dtype=none} : f32[2] per_replica
  %e = all_reduce(%d) {reducer="sum", group_size=2} : f32[2] mirrored
  %f = all_reduce(%x) {reducer="max", group_size=2} : f32[2] mirrored
  %g = jax.sub(%e, %f) : f32[2] mirrored
  %i = jax.mul(%h, 0.5:f16) {out_dtype=none} : f16[2] per_replica
  %j = all_reduce(%i) {reducer="sum", group_size=2} : f16[2] mirrored
  return %c, %d, %e, %g, %j
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica, %y: f32[2] per_replica, %h: f16[2] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[2] mirrored
  %b = all_reduce(%y) {reducer="mean", group_size=2} : f32[2] mirrored
  %c = jax.add(%a, %b) : f32[2] mirrored
  %d = jax.mul(%x, %y) {out_dtype=none} : f32[2] per_replica
  %e = all_reduce(%d) {reducer="sum", group_size=2} : f32[2] mirrored
  %f = all_reduce(%x) {reducer="max", group_size=2} : f32[2] mirrored
  %g = jax.sub(%e, %f) : f32[2] mirrored
  %i = jax.mul(%h, 0.5:f16) {out_dtype=none} : f16[2] per_replica
  %j = all_reduce(%i) {reducer="sum", group_size=2} : f16[2] mirrored
  return %c, %d, %e, %g, %j
}

# title: left alone: a transpose and a shared factor, behind which nothing is gained
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica, %w: f32[3,2] mirrored) {
  %turned = jax.transpose(%x) {permutation=(1, 0)} : f32[3,2] per_replica
  %scaled = jax.mul(%turned, %w) {out_dtype=none} : f32[3,2] per_replica
  %sum = all_reduce(%scaled) {reducer="sum", group_size=2} : f32[3,2] mirrored
  return %sum
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica, %w: f32[3,2] mirrored) {
  %turned = jax.transpose(%x) {permutation=(1, 0)} : f32[3,2] per_replica
  %scaled = jax.mul(%turned, %w) {out_dtype=none} : f32[3,2] per_replica
  %sum = all_reduce(%scaled) {reducer="sum", group_size=2} : f32[3,2] mirrored
  return %sum
}

# title: left alone: a factor of each replica's own, which makes the sum differ between them
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %own = jax.mul(%a, %y) {out_dtype=none} : f32[4] per_replica
  %b = all_reduce(%y) {reducer="sum", group_size=2} : f32[4] mirrored
  %sum = jax.add(%own, %b) : f32[4] per_replica
  return per_replica %sum
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %own = jax.mul(%a, %y) {out_dtype=none} : f32[4] per_replica
  %b = all_reduce(%y) {reducer="sum", group_size=2} : f32[4] mirrored
  %sum = jax.add(%own, %b) : f32[4] per_replica
  return per_replica %sum
}

# title: left alone: products of another dtype than their factors, which wrap
graph f on 2 replicas, stage spmd
(%x: i8[2] per_replica, %y: f32[2] per_replica) {
  %a = jax.mul(%x, 100:i8) {out_dtype=dtype<f32>} : f32[2] per_replica
  %b = all_reduce(%a) {reducer="sum", group_size=2} : f32[2] mirrored
  %c = all_reduce(%x) {reducer="sum", group_size=2} : i8[2] mirrored
  %d = jax.mul(%c, 100:i8) {out_dtype=dtype<f32>} : f32[2] mirrored
  %e = all_reduce(%y) {reducer="sum", group_size=2} : f32[2] mirrored
  %f = jax.add(%d, %e) : f32[2] mirrored
  return %b, %f
}
-->
graph f on 2 replicas, stage spmd
(%x: i8[2] per_replica, %y: f32[2] per_replica) {
  %a = jax.mul(%x, 100:i8) {out_dtype=dtype<f32>} : f32[2] per_replica
  %b = all_reduce(%a) {reducer="sum", group_size=2} : f32[2] mirrored
  %c = all_reduce(%x) {reducer="sum", group_size=2} : i8[2] mirrored
  %d = jax.mul(%c, 100:i8) {out_dtype=dtype<f32>} : f32[2] mirrored
  %e = all_reduce(%y) {reducer="sum", group_size=2} : f32[2] mirrored
  %f = jax.add(%d, %e) : f32[2] mirrored
  return %b, %f
}

# title: a value is reduced before it is reversed and repeated; it stays if it is only reversed
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica) {
  %back = jax.rev(%x) {dimensions=(0,)} : f32[2] per_replica
  %many = jax.broadcast_in_dim(%back) {shape=(4, 2), broadcast_dimensions=(1,), sharding=none} : f32[4,2] per_replica
  %a = all_reduce(%many) {reducer="sum", group_size=2} : f32[4,2] mirrored
  %again = jax.rev(%x) {dimensions=(0,)} : f32[2] per_replica
  %b = all_reduce(%again) {reducer="sum", group_size=2} : f32[2] mirrored
  return %a, %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica) {
  %back = jax.rev(%x) {dimensions=(0,)} : f32[2] per_replica
  %many = jax.broadcast_in_dim(%back) {shape=(4, 2), broadcast_dimensions=(1,), sharding=none} : f32[4,2] per_replica
  %0 = all_reduce(%back) {reducer="sum", group_size=2} : f32[2] mirrored
  %many_1 = jax.broadcast_in_dim(%0) {shape=(4, 2), broadcast_dimensions=(1,), sharding=none} : f32[4,2] mirrored
  %again = jax.rev(%x) {dimensions=(0,)} : f32[2] per_replica
  %b = all_reduce(%again) {reducer="sum", group_size=2} : f32[2] mirrored
  return %many_1, %b
}
