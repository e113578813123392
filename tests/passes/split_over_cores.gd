# title: two products of a sharded hidden layer end in one all_reduce, and what is not sharded stays full
graph f on 2 replicas of 2 cores, stage logical
  variable @up: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1}
  variable @down: f32[4,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=0}
(%x: f32[2,3] per_replica) {
  %up = read() {variable=@up} : f32[3,4] mirrored
  %down = read() {variable=@down} : f32[4,3] mirrored
  %h = jax.dot_general(%x, %up) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,4] per_replica
  %t = jax.tanh(%h) {accuracy=none} : f32[2,4] per_replica
  %y = jax.dot_general(%t, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,3] per_replica
  %z = jax.sin(%y) {accuracy=none} : f32[2,3] per_replica
  return per_replica %z
}
-->
graph f on 2 replicas split over 2 cores, stage logical
  variable @up: f32[3,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1, alone=true}
  variable @down: f32[2,3] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=0, alone=true}
(%x: f32[2,3] per_replica) {
  %up = read() {variable=@up} : f32[3,2] mirrored
  %down = read() {variable=@down} : f32[2,3] mirrored
  %h = jax.dot_general(%x, %up) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,2] per_replica
  %t = jax.tanh(%h) {accuracy=none} : f32[2,2] per_replica
  %y = jax.dot_general(%t, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,3] per_replica
  %0 = all_reduce_over_cores(%y) {reducer="sum", num_cores=2} : f32[2,3] per_replica
  %z = jax.sin(%0) {accuracy=none} : f32[2,3] per_replica
  return per_replica %z
}

# title: the slot of a sharded variable is sharded like it, and the terms of its gradient are reduced to shards
graph f on 2 replicas of 2 cores, stage logical
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=0}
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[2,4] per_replica) {
  %w = read() {variable=@w} : f32[4] mirrored
  %m = read() {variable=@m} : f32[4] mirrored
  %rows = split_over_cores(%x) {axis=0, num_cores=2} : f32[2,4] per_replica
  %g = jax.reduce_sum(%rows) {axes=(0,), out_sharding=none} : f32[4] per_replica
  %mean = all_reduce(%g) {reducer="mean", group_size=2} : f32[4] mirrored
  %n = jax.add(%m, %mean) : f32[4] mirrored
  %v = jax.sub(%w, %n) : f32[4] mirrored
  assign(%n) {variable=@m}
  assign(%v) {variable=@w}
  return
}
-->
graph f on 2 replicas split over 2 cores, stage logical
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=0, alone=true}
  variable @m: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=0, alone=true}
(%x: f32[2,4] per_replica) {
  %w = read() {variable=@w} : f32[2] mirrored
  %m = read() {variable=@m} : f32[2] mirrored
  %0 = slice_of_core(%x) {axis=0, num_cores=2} : f32[1,4] per_replica
  %g = jax.reduce_sum(%0) {axes=(0,), out_sharding=none} : f32[4] per_replica
  %1 = reduce_scatter_over_cores(%g) {axis=0, num_cores=2} : f32[2] per_replica
  %mean = all_reduce(%1) {reducer="mean", group_size=2} : f32[2] mirrored
  %n = jax.add(%m, %mean) : f32[2] mirrored
  %v = jax.sub(%w, %n) : f32[2] mirrored
  assign(%n) {variable=@m}
  assign(%v) {variable=@w}
  return
}

# title: a request converts shards along another dimension, and an operation without a row needs the full value
graph f on 1 replica of 2 cores, stage logical
(%x: f32[4,2] mirrored) {
  %a = split_over_cores(%x) {axis=0, num_cores=2} : f32[4,2] mirrored
  %b = jax.exp(%a) {accuracy=none} : f32[4,2] mirrored
  %c = split_over_cores(%b) {axis=1, num_cores=2} : f32[4,2] mirrored
  %d = jax.cumsum(%c) {axis=1, reverse=false} : f32[4,2] mirrored
  return %d
}
-->
graph f on 1 replica split over 2 cores, stage logical
(%x: f32[4,2] mirrored) {
  %0 = slice_of_core(%x) {axis=0, num_cores=2} : f32[2,2] mirrored
  %b = jax.exp(%0) {accuracy=none} : f32[2,2] mirrored
  %1 = all_to_all_over_cores(%b) {split_axis=1, concat_axis=0, num_cores=2} : f32[4,1] mirrored
  %2 = all_gather_over_cores(%1) {axis=1, num_cores=2} : f32[4,2] mirrored
  %d = jax.cumsum(%2) {axis=1, reverse=false} : f32[4,2] mirrored
  return %d
}

# title: a carry that becomes sharded is sharded from the start; of a broadcast each core makes its shard
graph f on 1 replica of 2 cores, stage logical
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1}
(%x: f32[4] mirrored) {
  %w = read() {variable=@w} : f32[3,4] mirrored
  %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %y = scan(%zeros, %w) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] mirrored
    body(%h: f32[4] mirrored, %slice: f32[4] mirrored) {
      %s = jax.add(%h, %slice) : f32[4] mirrored
      return %s
    }
  %z = jax.mul(%x, %y) {out_dtype=none} : f32[4] mirrored
  return %z
}
-->
graph f on 1 replica split over 2 cores, stage logical
  variable @w: f32[3,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1, alone=true}
(%x: f32[4] mirrored) {
  %w = read() {variable=@w} : f32[3,2] mirrored
  %zeros = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %zeros_1 = jax.broadcast_in_dim(0.0:f32) {shape=(2,), broadcast_dimensions=(), sharding=none} : f32[2] mirrored
  %y = scan(%zeros_1, %w) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[2] mirrored
    body(%h: f32[2] mirrored, %slice: f32[2] mirrored) {
      %s = jax.add(%h, %slice) : f32[2] mirrored
      return %s
    }
  %0 = slice_of_core(%x) {axis=0, num_cores=2} : f32[2] mirrored
  %z = jax.mul(%0, %y) {out_dtype=none} : f32[2] mirrored
  %1 = all_gather_over_cores(%z) {axis=0, num_cores=2} : f32[4] mirrored
  return %1
}

# title: of a joined gradient, each block is sharded: the gradient of the weights is put back in order, as it is smaller
graph f on 1 replica of 2 cores, stage logical
  variable @w: f32[2,8] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1}
  variable @u: f32[2,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1}
(%x: f32[64,2] mirrored) {
  %u = read() {variable=@u} : f32[2,4] mirrored
  %a = jax.dot_general(%x, %u) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[64,4] mirrored
  %d = jax.concatenate(%a, %a) {dimension=1} : f32[64,8] mirrored
  %g = jax.dot_general(%x, %d) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,8] mirrored
  assign(%g) {variable=@w}
  return
}
-->
graph f on 1 replica split over 2 cores, stage logical
  variable @w: f32[2,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1, alone=true}
  variable @u: f32[2,2] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1, alone=true}
(%x: f32[64,2] mirrored) {
  %u = read() {variable=@u} : f32[2,2] mirrored
  %a = jax.dot_general(%x, %u) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[64,2] mirrored
  %d = jax.concatenate(%a, %a) {dimension=1} : f32[64,4] mirrored
  %g = jax.dot_general(%x, %d) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,4] mirrored
  %0 = all_gather_over_cores(%g) {axis=1, num_cores=2} : f32[2,8] mirrored
  %1 = order_by_block(%0) {axis=1, blocks=(4, 4), num_cores=2} : f32[2,8] mirrored
  %2 = slice_of_core(%1) {axis=1, num_cores=2} : f32[2,4] mirrored
  assign(%2) {variable=@w}
  return
}

# title: slices, pads and reshapes keep to the borders of blocks
graph f on 1 replica of 2 cores, stage logical
  variable @w: f32[2,12] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1}
(%x: f32[64,2] mirrored) {
  %w = read() {variable=@w} : f32[2,12] mirrored
  %y = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[64,12] mirrored
  %r = jax.reshape(%y) {new_sizes=(64, 3, 4), dimensions=none, sharding=none} : f32[64,3,4] mirrored
  %i = jax.slice(%r) {start_indices=(0, 1, 0), limit_indices=(64, 2, 4), strides=none} : f32[64,1,4] mirrored
  %j = jax.slice(%r) {start_indices=(0, 2, 0), limit_indices=(64, 3, 4), strides=none} : f32[64,1,4] mirrored
  %k = jax.mul(%i, %j) {out_dtype=none} : f32[64,1,4] mirrored
  %p = jax.pad(%k, 0.0:f32) {padding_config=((0, 0, 0), (1, 1, 0), (0, 0, 0))} : f32[64,3,4] mirrored
  %t = jax.reduce_sum(%p) {axes=(0, 1, 2), out_sharding=none} : f32[] mirrored
  return %t
}
-->
graph f on 1 replica split over 2 cores, stage logical
  variable @w: f32[2,6] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=1, alone=true}
(%x: f32[64,2] mirrored) {
  %w = read() {variable=@w} : f32[2,6] mirrored
  %0 = all_gather_over_cores(%w) {axis=1, num_cores=2} : f32[2,12] mirrored
  %1 = order_by_core(%0) {axis=1, blocks=(4, 4, 4), num_cores=2} : f32[2,12] mirrored
  %2 = slice_of_core(%1) {axis=1, num_cores=2} : f32[2,6] mirrored
  %y = jax.dot_general(%x, %2) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[64,6] mirrored
  %r = jax.reshape(%y) {new_sizes=(64, 3, 2), dimensions=none, sharding=none} : f32[64,3,2] mirrored
  %i = jax.slice(%r) {start_indices=(0, 1, 0), limit_indices=(64, 2, 2), strides=none} : f32[64,1,2] mirrored
  %j = jax.slice(%r) {start_indices=(0, 2, 0), limit_indices=(64, 3, 2), strides=none} : f32[64,1,2] mirrored
  %k = jax.mul(%i, %j) {out_dtype=none} : f32[64,1,2] mirrored
  %p = jax.pad(%k, 0.0:f32) {padding_config=((0, 0, 0), (1, 1, 0), (0, 0, 0))} : f32[64,3,2] mirrored
  %t = jax.reduce_sum(%p) {axes=(0, 1, 2), out_sharding=none} : f32[] mirrored
  %3 = all_reduce_over_cores(%t) {reducer="sum", num_cores=2} : f32[] mirrored
  return %3
}

# title: terms that become, element by element, a value that the user splits are reduced to shards of the split
graph f on 2 replicas of 2 cores, stage logical
  variable @down: f32[4,6] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=0}
(%x: f32[2,4] per_replica, %r: f32[2,6] per_replica) {
  %down = read() {variable=@down} : f32[4,6] mirrored
  %y = jax.dot_general(%x, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6] per_replica
  %t = jax.tanh(%y) {accuracy=none} : f32[2,6] per_replica
  %n = jax.add(%t, %r) : f32[2,6] per_replica
  %s = split_over_cores(%n) {axis=1, num_cores=2} : f32[2,6] per_replica
  %z = jax.sin(%s) {accuracy=none} : f32[2,6] per_replica
  return per_replica %z
}
-->
graph f on 2 replicas split over 2 cores, stage logical
  variable @down: f32[2,6] mirrored {synchronization="on_write", aggregation="none", trainable=true, core=0, alone=true}
(%x: f32[2,4] per_replica, %r: f32[2,6] per_replica) {
  %down = read() {variable=@down} : f32[2,6] mirrored
  %0 = slice_of_core(%x) {axis=1, num_cores=2} : f32[2,2] per_replica
  %y = jax.dot_general(%0, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[2,6] per_replica
  %1 = reduce_scatter_over_cores(%y) {axis=1, num_cores=2} : f32[2,3] per_replica
  %t = jax.tanh(%1) {accuracy=none} : f32[2,3] per_replica
  %2 = slice_of_core(%r) {axis=1, num_cores=2} : f32[2,3] per_replica
  %n = jax.add(%t, %2) : f32[2,3] per_replica
  %z = jax.sin(%n) {accuracy=none} : f32[2,3] per_replica
  %3 = all_gather_over_cores(%z) {axis=1, num_cores=2} : f32[2,6] per_replica
  return per_replica %3
}

# title: what cores shard of variables that leave it to the pass is what makes the program the cheapest
graph f on 1 replica of 2 cores, stage logical
  variable @up: f32[4,64] mirrored {synchronization="on_write", aggregation="none", trainable=true, chooses_core=true}
  variable @down: f32[64,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, chooses_core=true}
(%x: f32[8,4] mirrored) {
  %up = read() {variable=@up} : f32[4,64] mirrored
  %down = read() {variable=@down} : f32[64,4] mirrored
  %h = jax.dot_general(%x, %up) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,64] mirrored
  %a = jax.tanh(%h) {accuracy=none} : f32[8,64] mirrored
  %y = jax.dot_general(%a, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,4] mirrored
  %n = jax.neg(%down) : f32[64,4] mirrored
  assign(%n) {variable=@down}
  return %y
}
-->
graph f on 1 replica split over 2 cores, stage logical
  variable @up: f32[4,32] mirrored {synchronization="on_write", aggregation="none", trainable=true, chooses_core=true, core=1, alone=true}
  variable @down: f32[32,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, chooses_core=true, core=0, alone=true}
(%x: f32[8,4] mirrored) {
  %up = read() {variable=@up} : f32[4,32] mirrored
  %down = read() {variable=@down} : f32[32,4] mirrored
  %h = jax.dot_general(%x, %up) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,32] mirrored
  %a = jax.tanh(%h) {accuracy=none} : f32[8,32] mirrored
  %y = jax.dot_general(%a, %down) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[8,4] mirrored
  %n = jax.neg(%down) : f32[32,4] mirrored
  assign(%n) {variable=@down}
  %0 = all_reduce_over_cores(%y) {reducer="sum", num_cores=2} : f32[8,4] mirrored
  return %0
}
