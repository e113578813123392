# title: a value that is widened before it is gathered is widened after
graph f on 2 replicas, stage spmd
(%x: bf16[4] per_replica) {
  %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %all = all_gather(%w) {axis=0, group_size=2} : f32[8] mirrored
  return %all
}
-->
graph f on 2 replicas, stage spmd
(%x: bf16[4] per_replica) {
  %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %0 = all_gather(%x) {axis=0, group_size=2} : bf16[8] mirrored
  %all = jax.convert_element_type(%0) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[8] mirrored
  return %all
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
  %0 = all_gather(%x) {axis=1, group_size=3} : i8[2,9] mirrored
  %1 = jax.convert_element_type(%0) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,9] mirrored
  %all = jax.convert_element_type(%1) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,9] mirrored
  %s = jax.sin(%b) {accuracy=none} : f32[2,3] per_replica
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
  %0 = all_gather(%n) {axis=0, group_size=4} : bf16[4] mirrored
  %all = jax.convert_element_type(%0) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] mirrored
  %v = jax.convert_element_type(%y) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[3] per_replica
  %1 = all_gather(%y) {axis=0, group_size=4, stages=(2, 2)} : f16[12] mirrored
  %many = jax.convert_element_type(%1) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[12] mirrored
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
  %c = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored
    body(%t: f32[] mirrored, %row: bool[2] per_replica) {
      %w = jax.convert_element_type(%row) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2] per_replica
      %0 = all_gather(%row) {axis=0, group_size=2} : bool[4] mirrored
      %all = jax.convert_element_type(%0) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] mirrored
      %s = jax.reduce_max(%all) {axes=(0,), out_sharding=none} : f32[] mirrored
      %n = jax.add(%t, %s) {out_sharding=none} : f32[] mirrored
      return %n
    }
  return %c
}

# title: left alone: narrow already, as wide, empty, widened after, another operation
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %e: bf16[0] per_replica, %h: bf16[4] per_replica) {
  %n = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
  %a = all_gather(%n) {axis=0, group_size=2} : bf16[8] mirrored
  %i = jax.convert_element_type(%x) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[4] per_replica
  %b = all_gather(%i) {axis=0, group_size=2} : i32[8] mirrored
  %w = jax.convert_element_type(%e) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[0] per_replica
  %c = all_gather(%w) {axis=0, group_size=2} : f32[0] mirrored
  %g = all_gather(%h) {axis=0, group_size=2} : bf16[8] mirrored
  %d = jax.convert_element_type(%g) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[8] mirrored
  %m = jax.neg(%x) : f32[4] per_replica
  %k = all_gather(%m) {axis=0, group_size=2} : f32[8] mirrored
  return %a, %b, %c, %d, %k
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %e: bf16[0] per_replica, %h: bf16[4] per_replica) {
  %n = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
  %a = all_gather(%n) {axis=0, group_size=2} : bf16[8] mirrored
  %i = jax.convert_element_type(%x) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[4] per_replica
  %b = all_gather(%i) {axis=0, group_size=2} : i32[8] mirrored
  %w = jax.convert_element_type(%e) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[0] per_replica
  %c = all_gather(%w) {axis=0, group_size=2} : f32[0] mirrored
  %g = all_gather(%h) {axis=0, group_size=2} : bf16[8] mirrored
  %d = jax.convert_element_type(%g) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[8] mirrored
  %m = jax.neg(%x) : f32[4] per_replica
  %k = all_gather(%m) {axis=0, group_size=2} : f32[8] mirrored
  return %a, %b, %c, %d, %k
}

# title: nothing to do: no gather
graph f on 2 replicas, stage spmd
(%h: bf16[4] per_replica) {
  %w = jax.convert_element_type(%h) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %a = all_reduce(%w) {reducer="max", group_size=2} : f32[4] mirrored
  return %a
}
-->
graph f on 2 replicas, stage spmd
(%h: bf16[4] per_replica) {
  %w = jax.convert_element_type(%h) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %a = all_reduce(%w) {reducer="max", group_size=2} : f32[4] mirrored
  return %a
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
  %all = all_gather(%x) {axis=0, group_size=2} : f32[8] mirrored
  %0 = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
  %n = all_gather(%0) {axis=0, group_size=2} : bf16[8] mirrored
  %s = jax.sin(%n) {accuracy=none} : bf16[8] mirrored
  return %s
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
  %all = all_gather(%w) {axis=0, group_size=4, stages=(2, 2)} : f32[8] mirrored
  %0 = jax.convert_element_type(%w) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2] sharded(0)
  %n = all_gather(%0) {axis=0, group_size=4, stages=(2, 2)} : bf16[8] mirrored
  %1 = jax.convert_element_type(%0) {new_dtype=dtype<i8>, weak_type=false, sharding=none} : i8[2] sharded(0)
  %i = all_gather(%1) {axis=0, group_size=4, stages=(2, 2)} : i8[8] mirrored
  return %i
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
