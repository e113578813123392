# title: weights are sharded along their columns, which are more than what the product sums over
graph f on 2 replicas, stage logical
  variable @w: f32[2,16] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%x: f32[1,2] per_replica) {
  %w = read() {variable=@w} : f32[2,16] mirrored
  %y = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  return %y
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[2,16] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=1}
(%x: f32[1,2] per_replica) {
  %w = read() {variable=@w} : f32[2,16] mirrored
  %y = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  return %y
}

# title: with them their slots are; a variable that each replica holds in full is sharded if it is assigned
graph f on 2 replicas, stage logical
  variable @w: f32[16,2] mirrored {synchronization="on_write", aggregation="sum", trainable=true}
  variable @m: f32[16,2] mirrored {synchronization="on_write", aggregation="none", trainable=false}
  variable @b: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[1,2] per_replica) {
  %w = read() {variable=@w} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %b = read() {variable=@b} : f32[2] mirrored
  %m = read() {variable=@m} : f32[16,2] mirrored
  %sum = jax.add(%w, %m) : f32[16,2] mirrored
  %new = aggregate(%sum) {variable=@w, context="cross"} : f32[16,2] mirrored
  assign(%new) {variable=@w}
  assign(%new) {variable=@m}
  return %y, %b
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[16,2] mirrored {synchronization="on_write", aggregation="sum", trainable=true, sharded_along=0}
  variable @m: f32[16,2] mirrored {synchronization="on_write", aggregation="none", trainable=false, sharded_along=0}
  variable @b: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[1,2] per_replica) {
  %w = read() {variable=@w} : f32[16,2] mirrored
  %y = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %b = read() {variable=@b} : f32[2] mirrored
  %m = read() {variable=@m} : f32[16,2] mirrored
  %sum = jax.add(%w, %m) : f32[16,2] mirrored
  %new = aggregate(%sum) {variable=@w, context="cross"} : f32[16,2] mirrored
  assign(%new) {variable=@w}
  assign(%new) {variable=@m}
  return %y, %b
}

# title: the second product of a layer sums over the columns of the first; of many rows, weights stay
graph f on 2 replicas, stage logical
  variable @up: f32[2,16] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
  variable @down: f32[16,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=1}
  variable @other: f32[2,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%x: f32[1,2] per_replica, %many: f32[8,2] per_replica) {
  %up = read() {variable=@up} : f32[2,16] mirrored
  %y = jax.dot_general(%x, %up) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %down = read() {variable=@down} : f32[16,2] mirrored
  %z = jax.dot_general(%y, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,2] per_replica
  %other = read() {variable=@other} : f32[2,2] mirrored
  %a = jax.dot_general(%many, %other) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  return %z, %a
}
-->
graph f on 2 replicas, stage logical
  variable @up: f32[2,16] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=1}
  variable @down: f32[16,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
  variable @other: f32[2,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%x: f32[1,2] per_replica, %many: f32[8,2] per_replica) {
  %up = read() {variable=@up} : f32[2,16] mirrored
  %y = jax.dot_general(%x, %up) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
  %down = read() {variable=@down} : f32[16,2] mirrored
  %z = jax.dot_general(%y, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,2] per_replica
  %other = read() {variable=@other} : f32[2,2] mirrored
  %a = jax.dot_general(%many, %other) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,2] per_replica
  return %z, %a
}

# title: in a loop, weights of its products are sharded if the gradient is in the same body
graph f on 2 replicas, stage logical
  variable @w: f32[16,2] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%xs: f32[2,1,2] per_replica) {
  %w = read() {variable=@w} : f32[16,2] mirrored
  %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(16, 2), broadcast_dimensions=(), sharding=none} : f32[16,2] mirrored
  %sum = scan(%w, %zeros, %xs) {length=2, reverse=false, num_consts=1, num_carry=1} : f32[16,2] mirrored
    body(%v: f32[16,2] mirrored, %total: f32[16,2] mirrored, %x: f32[1,2] per_replica) {
      %y = jax.dot_general(%x, %v) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
      %g = jax.dot_general(%y, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[16,2] per_replica
      %r = all_reduce(%g) {reducer="mean", group_size=2} : f32[16,2] mirrored
      %new = jax.add(%total, %r) {out_sharding=none} : f32[16,2] mirrored
      return %new
    }
  assign(%sum) {variable=@w}
  return
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[16,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%xs: f32[2,1,2] per_replica) {
  %w = read() {variable=@w} : f32[16,2] mirrored
  %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(16, 2), broadcast_dimensions=(), sharding=none} : f32[16,2] mirrored
  %sum = scan(%w, %zeros, %xs) {length=2, reverse=false, num_consts=1, num_carry=1} : f32[16,2] mirrored
    body(%v: f32[16,2] mirrored, %total: f32[16,2] mirrored, %x: f32[1,2] per_replica) {
      %y = jax.dot_general(%x, %v) {dimension_numbers=(((1,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[1,16] per_replica
      %g = jax.dot_general(%y, %x) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[16,2] per_replica
      %r = all_reduce(%g) {reducer="mean", group_size=2} : f32[16,2] mirrored
      %new = jax.add(%total, %r) {out_sharding=none} : f32[16,2] mirrored
      return %new
    }
  assign(%sum) {variable=@w}
  return
}
