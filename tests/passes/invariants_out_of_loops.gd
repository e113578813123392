# title: a variable is gathered and converted in front of the loop; a product stays
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2,4] sharded(0) = @w, %x: f32[3,4] per_replica) {
  %ys = scan(%w, %x) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=0} : bf16[3,4] per_replica
    body(%w_in: f32[2,4] sharded(0), %x_in: f32[4] per_replica) {
      %all = all_gather(%w_in) {axis=0, group_size=2} : f32[4,4] mirrored
      %narrow = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4,4] mirrored
      %n = jax.convert_element_type(%x_in) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
      %y = jax.dot_general(%n, %narrow) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<bf16>, out_sharding=none} : bf16[4] per_replica
      return %y
    }
  return %ys
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2,4] sharded(0) = @w, %x: f32[3,4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %narrow = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4,4] mirrored
  %0 = scan(%w, %all, %narrow, %x) {length=3, reverse=false, unroll=1, num_consts=3, num_carry=0} : bf16[3,4] per_replica
    body(%w_in: f32[2,4] sharded(0), %all_1: f32[4,4] mirrored, %narrow_1: bf16[4,4] mirrored, %x_in: f32[4] per_replica) {
      %n = jax.convert_element_type(%x_in) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
      %y = jax.dot_general(%n, %narrow_1) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<bf16>, out_sharding=none} : bf16[4] per_replica
      return %y
    }
  return %0
}

# title: out of a loop in a loop; what is larger than what it is made of, and what is of no variable, stays
graph f on 2 replicas, stage spmd
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2] sharded(0) = @w, %c: f32[4] mirrored, %x: f32[3,2,4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4] mirrored
  %ys = scan(%all, %c, %x) {length=3, reverse=false, unroll=1, num_consts=2, num_carry=0} : f32[3,2,4] per_replica
    body(%w_in: f32[4] mirrored, %c_in: f32[4] mirrored, %x_in: f32[2,4] per_replica) {
      %zs = scan(%w_in, %c_in, %x_in) {length=2, reverse=false, unroll=1, num_consts=2, num_carry=0} : f32[2,4] per_replica
        body(%w_most: f32[4] mirrored, %c_most: f32[4] mirrored, %x_most: f32[4] per_replica) {
          %half = jax.mul(%w_most, 0.5:f32) {out_dtype=none} : f32[4] mirrored
          %double = jax.mul(%c_most, 2.0:f32) {out_dtype=none} : f32[4] mirrored
          %large = jax.broadcast_in_dim(%half) {shape=(2, 4), broadcast_dimensions=(1,), sharding=none} : f32[2,4] mirrored
          %sum = jax.reduce_sum(%large) {axes=(0,), out_sharding=none} : f32[4] mirrored
          %a = jax.add(%x_most, %sum) : f32[4] per_replica
          %b = jax.add(%a, %double) : f32[4] per_replica
          return %b
        }
      return %zs
    }
  return %ys
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2] sharded(0) = @w, %c: f32[4] mirrored, %x: f32[3,2,4] per_replica) {
  %all = all_gather(%w) {axis=0, group_size=2} : f32[4] mirrored
  %half = jax.mul(%all, 0.5:f32) {out_dtype=none} : f32[4] mirrored
  %0 = scan(%all, %c, %half, %x) {length=3, reverse=false, unroll=1, num_consts=3, num_carry=0} : f32[3,2,4] per_replica
    body(%w_in: f32[4] mirrored, %c_in: f32[4] mirrored, %half_1: f32[4] mirrored, %x_in: f32[2,4] per_replica) {
      %1 = scan(%w_in, %c_in, %half_1, %x_in) {length=2, reverse=false, unroll=1, num_consts=3, num_carry=0} : f32[2,4] per_replica
        body(%w_most: f32[4] mirrored, %c_most: f32[4] mirrored, %half_2: f32[4] mirrored, %x_most: f32[4] per_replica) {
          %double = jax.mul(%c_most, 2.0:f32) {out_dtype=none} : f32[4] mirrored
          %large = jax.broadcast_in_dim(%half_2) {shape=(2, 4), broadcast_dimensions=(1,), sharding=none} : f32[2,4] mirrored
          %sum = jax.reduce_sum(%large) {axes=(0,), out_sharding=none} : f32[4] mirrored
          %a = jax.add(%x_most, %sum) : f32[4] per_replica
          %b = jax.add(%a, %double) : f32[4] per_replica
          return %b
        }
      return %1
    }
  return %0
}
