# title: a widened matrix, scattered by rows, goes in parts of its columns
graph f on 2 replicas, stage spmd
(%x: bf16[4,16] per_replica) {
  %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,16] per_replica
  %s = reduce_scatter(%w) {reducer="mean", axis=0, group_size=2} : f32[2,16] sharded(0)
  return per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%x: bf16[4,16] per_replica) {
  %0 = constant() {value=array<i32[4]: 0, 1, 2, 3>} : i32[4] mirrored
  %1 = scan(%x, %0) {length=4, reverse=false, unroll=1, num_consts=1, num_carry=0} : f32[4,2,4] sharded(1)
    body(%x_1: bf16[4,16] per_replica, %part: i32[] mirrored) {
      %2 = take_part(%x_1, %part) {axis=1, count=4} : bf16[4,4] per_replica
      %3 = jax.convert_element_type(%2) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,4] per_replica
      %4 = reduce_scatter(%3) {reducer="mean", axis=0, group_size=2} : f32[2,4] sharded(0)
      return %4
    }
  %s = join_parts(%1) {axis=1} : f32[2,16] sharded(0)
  return per_replica %s
}

# title: scattered by columns, it goes in parts of its rows; a scale moves in too
graph f on 2 replicas, stage spmd
(%x: bf16[8,4] per_replica) {
  %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[8,4] per_replica
  %m = jax.mul(0.3:f32, %w) {out_dtype=none} : f32[8,4] per_replica
  %y = scale(%m) {factor=0.7} : f32[8,4] per_replica
  %s = reduce_scatter(%y) {reducer="sum", axis=1, group_size=2} : f32[8,2] sharded(1)
  return per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%x: bf16[8,4] per_replica) {
  %0 = constant() {value=array<i32[2]: 0, 1>} : i32[2] mirrored
  %1 = scan(%x, %0) {length=2, reverse=false, unroll=1, num_consts=1, num_carry=0} : f32[2,4,2] sharded(2)
    body(%x_1: bf16[8,4] per_replica, %part: i32[] mirrored) {
      %2 = take_part(%x_1, %part) {axis=0, count=2} : bf16[4,4] per_replica
      %3 = jax.convert_element_type(%2) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,4] per_replica
      %4 = jax.mul(0.3:f32, %3) {out_dtype=none} : f32[4,4] per_replica
      %5 = scale(%4) {factor=0.7} : f32[4,4] per_replica
      %6 = reduce_scatter(%5) {reducer="sum", axis=1, group_size=2} : f32[4,2] sharded(1)
      return %6
    }
  %s = join_parts(%1) {axis=0} : f32[8,2] sharded(1)
  return per_replica %s
}

# title: groups of replicas keep their slices
graph f on 4 replicas, stage spmd
(%x: bf16[2,32] per_replica) {
  %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,32] per_replica
  %s = reduce_scatter(%w) {reducer="mean", axis=0, group_size=2, num_groups=2} : f32[1,32] sharded(0) over member
  return per_replica %s
}
-->
graph f on 4 replicas, stage spmd
(%x: bf16[2,32] per_replica) {
  %0 = constant() {value=array<i32[4]: 0, 1, 2, 3>} : i32[4] mirrored
  %1 = scan(%x, %0) {length=4, reverse=false, unroll=1, num_consts=1, num_carry=0} : f32[4,1,8] sharded(1) over member
    body(%x_1: bf16[2,32] per_replica, %part: i32[] mirrored) {
      %2 = take_part(%x_1, %part) {axis=1, count=4} : bf16[2,8] per_replica
      %3 = jax.convert_element_type(%2) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,8] per_replica
      %4 = reduce_scatter(%3) {reducer="mean", axis=0, group_size=2, num_groups=2} : f32[1,8] sharded(0) over member
      return %4
    }
  %s = join_parts(%1) {axis=1} : f32[1,32] sharded(0) over member
  return per_replica %s
}

# title: in stages, inside of a loop
graph f on 4 replicas, stage spmd
(%xs: bf16[3,4,8] per_replica) {
  %y = scan(%xs) {num_consts=0, num_carry=0, length=3, reverse=false, unroll=1} : f32[3,1,8] sharded(1)
    body(%x: bf16[4,8] per_replica) {
      %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,8] per_replica
      %s = reduce_scatter(%w) {reducer="sum", axis=0, group_size=4, stages=(2, 2)} : f32[1,8] sharded(0)
      return %s
    }
  return per_replica %y
}
-->
graph f on 4 replicas, stage spmd
(%xs: bf16[3,4,8] per_replica) {
  %y = scan(%xs) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=0} : f32[3,1,8] sharded(1)
    body(%x: bf16[4,8] per_replica) {
      %0 = constant() {value=array<i32[2]: 0, 1>} : i32[2] mirrored
      %1 = scan(%x, %0) {length=2, reverse=false, unroll=1, num_consts=1, num_carry=0} : f32[2,1,4] sharded(1)
        body(%x_1: bf16[4,8] per_replica, %part: i32[] mirrored) {
          %2 = take_part(%x_1, %part) {axis=1, count=2} : bf16[4,4] per_replica
          %3 = jax.convert_element_type(%2) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,4] per_replica
          %4 = reduce_scatter(%3) {reducer="sum", axis=0, group_size=4, stages=(2, 2)} : f32[1,4] sharded(0)
          return %4
        }
      %s = join_parts(%1) {axis=1} : f32[1,8] sharded(0)
      return %s
    }
  return per_replica %y
}

# title: only what is widened: the product is computed in float32, the first narrow value is the operand
graph f on 2 replicas, stage spmd
(%x: f32[4,16] per_replica, %y: bf16[4,16] per_replica) {
  %m = jax.mul(%x, %x) {out_dtype=none} : f32[4,16] per_replica
  %s = reduce_scatter(%m) {reducer="sum", axis=0, group_size=2} : f32[2,16] sharded(0)
  %a = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4,16] per_replica
  %b = jax.add(%a, %y) : bf16[4,16] per_replica
  %c = jax.convert_element_type(%b) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,16] per_replica
  %t = reduce_scatter(%c) {reducer="sum", axis=0, group_size=2} : f32[2,16] sharded(0)
  return per_replica %s, per_replica %t
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4,16] per_replica, %y: bf16[4,16] per_replica) {
  %m = jax.mul(%x, %x) {out_dtype=none} : f32[4,16] per_replica
  %s = reduce_scatter(%m) {reducer="sum", axis=0, group_size=2} : f32[2,16] sharded(0)
  %a = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4,16] per_replica
  %b = jax.add(%a, %y) : bf16[4,16] per_replica
  %0 = constant() {value=array<i32[4]: 0, 1, 2, 3>} : i32[4] mirrored
  %1 = scan(%b, %0) {length=4, reverse=false, unroll=1, num_consts=1, num_carry=0} : f32[4,2,4] sharded(1)
    body(%b_1: bf16[4,16] per_replica, %part: i32[] mirrored) {
      %2 = take_part(%b_1, %part) {axis=1, count=4} : bf16[4,4] per_replica
      %3 = jax.convert_element_type(%2) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,4] per_replica
      %4 = reduce_scatter(%3) {reducer="sum", axis=0, group_size=2} : f32[2,4] sharded(0)
      return %4
    }
  %t = join_parts(%1) {axis=1} : f32[2,16] sharded(0)
  return per_replica %s, per_replica %t
}

# title: a small value, one used in full too, one dimension, and one that does not divide stay
graph f on 2 replicas, stage spmd
(%a: bf16[2,8] per_replica, %b: bf16[4,16] per_replica, %c: bf16[64] per_replica, %d: bf16[2,37] per_replica) {
  %u = jax.convert_element_type(%a) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,8] per_replica
  %p = reduce_scatter(%u) {reducer="sum", axis=0, group_size=2} : f32[1,8] sharded(0)
  %v = jax.convert_element_type(%b) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,16] per_replica
  %q = reduce_scatter(%v) {reducer="sum", axis=0, group_size=2} : f32[2,16] sharded(0)
  %w = jax.convert_element_type(%c) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[64] per_replica
  %r = reduce_scatter(%w) {reducer="sum", axis=0, group_size=2} : f32[32] sharded(0)
  %x = jax.convert_element_type(%d) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,37] per_replica
  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[1,37] sharded(0)
  return per_replica %p, per_replica %q, per_replica %v, per_replica %r, per_replica %s
}
-->
graph f on 2 replicas, stage spmd
(%a: bf16[2,8] per_replica, %b: bf16[4,16] per_replica, %c: bf16[64] per_replica, %d: bf16[2,37] per_replica) {
  %u = jax.convert_element_type(%a) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,8] per_replica
  %p = reduce_scatter(%u) {reducer="sum", axis=0, group_size=2} : f32[1,8] sharded(0)
  %v = jax.convert_element_type(%b) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4,16] per_replica
  %q = reduce_scatter(%v) {reducer="sum", axis=0, group_size=2} : f32[2,16] sharded(0)
  %w = jax.convert_element_type(%c) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[64] per_replica
  %r = reduce_scatter(%w) {reducer="sum", axis=0, group_size=2} : f32[32] sharded(0)
  %x = jax.convert_element_type(%d) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[2,37] per_replica
  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[1,37] sharded(0)
  return per_replica %p, per_replica %q, per_replica %v, per_replica %r, per_replica %s
}
