# title: each iteration reduces its own layer, after what is done with each element
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[3,2] sharded(1) = @w, %x: bf16[3,4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4] mirrored
  %gs = scan(%x) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=0} : bf16[3,4] per_replica
    body(%x_in: bf16[4] per_replica) {
      %g = jax.mul(%x_in, %x_in) {out_dtype=none} : bf16[4] per_replica
      return %g
    }
  %wide = jax.convert_element_type(%gs) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[3,4] per_replica
  %mean = all_reduce(%wide) {reducer="mean", group_size=2} : f32[3,4] mirrored
  %new = jax.sub(%all, %mean) : f32[3,4] mirrored
  %w_new = own_slice(%new) {axis=1, group_size=2} : f32[3,2] sharded(1)
  return %w_new -> @w
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[3,2] sharded(1) = @w, %x: bf16[3,4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[3,4] mirrored
  %gs = scan(%x) {length=3, reverse=true, unroll=1, num_consts=0, num_carry=0} : f32[3,4] mirrored
    body(%x_in: bf16[4] per_replica) {
      %g = jax.mul(%x_in, %x_in) {out_dtype=none} : bf16[4] per_replica
      %wide = jax.convert_element_type(%g) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
      %mean = all_reduce(%wide) {reducer="mean", group_size=2} : f32[4] mirrored
      return %mean
    }
  %new = jax.sub(%all, %gs) : f32[3,4] mirrored
  %w_new = own_slice(%new) {axis=1, group_size=2} : f32[3,2] sharded(1)
  return %w_new -> @w
}

# title: pairs of layers, and a first layer by itself: what moves elements, and zeros, stay behind
graph f on 2 replicas, stage spmd
  variable @w: f32[5,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[5,2] sharded(1) = @w, %x: f32[2,2,4] per_replica, %first: f32[1,4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[5,4] mirrored
  %gs = scan(%x) {length=2, reverse=true, unroll=1, num_consts=0, num_carry=0} : f32[2,2,4] per_replica
    body(%x_in: f32[2,4] per_replica) {
      %g = jax.neg(%x_in) : f32[2,4] per_replica
      return %g
    }
  %layers = jax.reshape(%gs) {new_sizes=(4, 4), dimensions=none, sharding=none} : f32[4,4] per_replica
  %rest = jax.pad(%layers, 0.0:f32) {padding_config=((1, 0, 0), (0, 0, 0))} : f32[5,4] per_replica
  %one = jax.pad(%first, 0.0:f32) {padding_config=((0, 4, 0), (0, 0, 0))} : f32[5,4] per_replica
  %both = jax.add_any(%rest, %one) : f32[5,4] per_replica
  %mean = all_reduce(%both) {reducer="sum", group_size=2} : f32[5,4] mirrored
  %new = jax.sub(%all, %mean) : f32[5,4] mirrored
  %w_new = own_slice(%new) {axis=1, group_size=2} : f32[5,2] sharded(1)
  return %w_new -> @w
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[5,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[5,2] sharded(1) = @w, %x: f32[2,2,4] per_replica, %first: f32[1,4] per_replica) {
  %all = all_gather(%w) {axis=1, group_size=2} : f32[5,4] mirrored
  %gs = scan(%x) {length=2, reverse=true, unroll=1, num_consts=0, num_carry=0} : f32[2,2,4] mirrored
    body(%x_in: f32[2,4] per_replica) {
      %g = jax.neg(%x_in) : f32[2,4] per_replica
      %mean = all_reduce(%g) {reducer="sum", group_size=2} : f32[2,4] mirrored
      return %mean
    }
  %layers = jax.reshape(%gs) {new_sizes=(4, 4), dimensions=none, sharding=none} : f32[4,4] mirrored
  %rest = jax.pad(%layers, 0.0:f32) {padding_config=((1, 0, 0), (0, 0, 0))} : f32[5,4] mirrored
  %mean_1 = all_reduce(%first) {reducer="sum", group_size=2} : f32[1,4] mirrored
  %one = jax.pad(%mean_1, 0.0:f32) {padding_config=((0, 4, 0), (0, 0, 0))} : f32[5,4] mirrored
  %both = jax.add_any(%rest, %one) : f32[5,4] mirrored
  %new = jax.sub(%all, %both) : f32[5,4] mirrored
  %w_new = own_slice(%new) {axis=1, group_size=2} : f32[5,2] sharded(1)
  return %w_new -> @w
}

# title: a mean of sums over microbatches, and a sum that begins with a value, are reduced in each iteration
graph f on 2 replicas, stage spmd
  variable @v: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%v: f32[2] sharded(0) = @v, %w: f32[2] sharded(0) = @w, %x: f32[3,4] per_replica, %start: f32[4] mirrored) {
  %zero = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %none = to_partial(%zero) {reducer="mean", group_size=2} : f32[4] partial(mean)
  %begin = to_partial(%start) {reducer="sum", group_size=2} : f32[4] partial(sum)
  %a, %b = scan(%none, %begin, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[4] partial(mean), f32[4] partial(sum)
    body(%a_in: f32[4] partial(mean), %b_in: f32[4] partial(sum), %x_in: f32[4] per_replica) {
      %p = to_partial(%x_in) {reducer="mean", group_size=2} : f32[4] partial(mean)
      %a_new = jax.add(%a_in, %p) : f32[4] partial(mean)
      %q = to_partial(%x_in) {reducer="sum", group_size=2} : f32[4] partial(sum)
      %b_new = jax.sub(%b_in, %q) : f32[4] partial(sum)
      return %a_new, %b_new
    }
  %mean = all_reduce(%a) {reducer="mean", group_size=2} : f32[4] mirrored
  %sum = all_reduce(%b) {reducer="sum", group_size=2} : f32[4] mirrored
  %v_new = own_slice(%mean) {axis=0, group_size=2} : f32[2] sharded(0)
  %w_new = own_slice(%sum) {axis=0, group_size=2} : f32[2] sharded(0)
  return %v_new -> @v, %w_new -> @w
}
-->
graph f on 2 replicas, stage spmd
  variable @v: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%v: f32[2] sharded(0) = @v, %w: f32[2] sharded(0) = @w, %x: f32[3,4] per_replica, %start: f32[4] mirrored) {
  %zero = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %a, %b = scan(%zero, %start, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=2} : f32[4] mirrored, f32[4] mirrored
    body(%a_in: f32[4] mirrored, %b_in: f32[4] mirrored, %x_in: f32[4] per_replica) {
      %mean = all_reduce(%x_in) {reducer="mean", group_size=2} : f32[4] mirrored
      %a_new = jax.add(%a_in, %mean) : f32[4] mirrored
      %sum = all_reduce(%x_in) {reducer="sum", group_size=2} : f32[4] mirrored
      %b_new = jax.sub(%b_in, %sum) : f32[4] mirrored
      return %a_new, %b_new
    }
  %v_new = own_slice(%a) {axis=0, group_size=2} : f32[2] sharded(0)
  %w_new = own_slice(%b) {axis=0, group_size=2} : f32[2] sharded(0)
  return %v_new -> @v, %w_new -> @w
}

# title: a sum of what is zero but for the layer that an index names is reduced without the zeros
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[3,2] sharded(1) = @w, %x: f32[3,4] per_replica) {
  %zero = jax.broadcast_in_dim(0.0:f32) {shape=(3, 4), broadcast_dimensions=(), sharding=none} : f32[3,4] mirrored
  %i, %sum = scan(0:i32, %zero, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=2} : i32[] mirrored, f32[3,4] per_replica
    body(%i_in: i32[] mirrored, %sum_in: f32[3,4] per_replica, %x_in: f32[4] per_replica) {
      %layer = jax.broadcast_in_dim(%x_in) {shape=(1, 4), broadcast_dimensions=(1,), sharding=none} : f32[1,4] per_replica
      %none = jax.broadcast_in_dim(0.0:f32) {shape=(3, 4), broadcast_dimensions=(), sharding=none} : f32[3,4] mirrored
      %term = jax.dynamic_update_slice(%none, %layer, %i_in, 0:i32) : f32[3,4] per_replica
      %sum_new = jax.add_any(%sum_in, %term) : f32[3,4] per_replica
      %i_new = jax.add(%i_in, 1:i32) : i32[] mirrored
      return %i_new, %sum_new
    }
  %mean = all_reduce(%sum) {reducer="mean", group_size=2} : f32[3,4] mirrored
  %w_new = own_slice(%mean) {axis=1, group_size=2} : f32[3,2] sharded(1)
  return %w_new -> @w
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[3,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%w: f32[3,2] sharded(1) = @w, %x: f32[3,4] per_replica) {
  %zero = jax.broadcast_in_dim(0.0:f32) {shape=(3, 4), broadcast_dimensions=(), sharding=none} : f32[3,4] mirrored
  %i, %sum = scan(0:i32, %zero, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=2} : i32[] mirrored, f32[3,4] mirrored
    body(%i_in: i32[] mirrored, %sum_in: f32[3,4] mirrored, %x_in: f32[4] per_replica) {
      %none = jax.broadcast_in_dim(0.0:f32) {shape=(3, 4), broadcast_dimensions=(), sharding=none} : f32[3,4] mirrored
      %mean = all_reduce(%x_in) {reducer="mean", group_size=2} : f32[4] mirrored
      %layer = jax.broadcast_in_dim(%mean) {shape=(1, 4), broadcast_dimensions=(1,), sharding=none} : f32[1,4] mirrored
      %term = jax.dynamic_update_slice(%none, %layer, %i_in, 0:i32) : f32[3,4] mirrored
      %sum_new = jax.add_any(%sum_in, %term) : f32[3,4] mirrored
      %i_new = jax.add(%i_in, 1:i32) : i32[] mirrored
      return %i_new, %sum_new
    }
  %w_new = own_slice(%sum) {axis=1, group_size=2} : f32[3,2] sharded(1)
  return %w_new -> @w
}

# title: left alone: a stack that is needed in full, a loop of one iteration, a sum that the body reads
graph f on 2 replicas, stage spmd
  variable @v: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @w: f32[1,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%v: f32[2] sharded(0) = @v, %w: f32[1,2] sharded(1) = @w, %x: f32[3,4] per_replica, %y: f32[1,4] per_replica) {
  %zero = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %a, %gs = scan(%zero, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%a_in: f32[4] per_replica, %x_in: f32[4] per_replica) {
      %a_new = jax.add(%a_in, %x_in) : f32[4] per_replica
      return %a_new, %a_in
    }
  %hs = scan(%y) {length=1, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[1,4] per_replica
    body(%y_in: f32[4] per_replica) {
      return %y_in
    }
  %mean = all_reduce(%a) {reducer="mean", group_size=2} : f32[4] mirrored
  %full = all_reduce(%gs) {reducer="mean", group_size=2} : f32[3,4] mirrored
  %one = all_reduce(%hs) {reducer="mean", group_size=2} : f32[1,4] mirrored
  %v_new = own_slice(%mean) {axis=0, group_size=2} : f32[2] sharded(0)
  %w_new = own_slice(%one) {axis=1, group_size=2} : f32[1,2] sharded(1)
  return %v_new -> @v, %w_new -> @w, %full
}
-->
graph f on 2 replicas, stage spmd
  variable @v: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
  variable @w: f32[1,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=1}
(%v: f32[2] sharded(0) = @v, %w: f32[1,2] sharded(1) = @w, %x: f32[3,4] per_replica, %y: f32[1,4] per_replica) {
  %zero = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %a, %gs = scan(%zero, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[4] per_replica, f32[3,4] per_replica
    body(%a_in: f32[4] per_replica, %x_in: f32[4] per_replica) {
      %a_new = jax.add(%a_in, %x_in) : f32[4] per_replica
      return %a_new, %a_in
    }
  %hs = scan(%y) {length=1, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[1,4] per_replica
    body(%y_in: f32[4] per_replica) {
      return %y_in
    }
  %mean = all_reduce(%a) {reducer="mean", group_size=2} : f32[4] mirrored
  %full = all_reduce(%gs) {reducer="mean", group_size=2} : f32[3,4] mirrored
  %one = all_reduce(%hs) {reducer="mean", group_size=2} : f32[1,4] mirrored
  %v_new = own_slice(%mean) {axis=0, group_size=2} : f32[2] sharded(0)
  %w_new = own_slice(%one) {axis=1, group_size=2} : f32[1,2] sharded(1)
  return %v_new -> @v, %w_new -> @w, %full
}
