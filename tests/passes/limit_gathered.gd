# title: two layers forward and back: the first is gathered again, the second is kept
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", sharded_along=0}
  variable @v: f32[4,4] mirrored {synchronization="on_write", aggregation="none", sharded_along=0}
(%w: f32[2,4] sharded(0) = @w, %v: f32[2,4] sharded(0) = @v, %x: f32[4] per_replica) {
  %w_all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %n = jax.convert_element_type(%v) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,4] sharded(0)
  %v_all = all_gather(%n) {axis=0, group_size=2} : bf16[4,4] mirrored
  %a = jax.dot_general(%x, %w_all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %s = jax.sin(%a) {accuracy=none} : f32[4] per_replica
  %b = jax.dot_general(%s, %v_all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %t = jax.sin(%b) {accuracy=none} : f32[4] per_replica
  %c = jax.dot_general(%t, %v_all) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %u = jax.mul(%c, %s) {out_dtype=none} : f32[4] per_replica
  %d = jax.dot_general(%u, %w_all) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  return per_replica %d, per_replica %u
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
  variable @v: f32[4,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2,4] sharded(0) = @w, %v: f32[2,4] sharded(0) = @v, %x: f32[4] per_replica) {
  %w_all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %n = jax.convert_element_type(%v) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[2,4] sharded(0)
  %v_all = all_gather(%n) {axis=0, group_size=2} : bf16[4,4] mirrored
  %a = jax.dot_general(%x, %w_all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %s = jax.sin(%a) {accuracy=none} : f32[4] per_replica
  %b = jax.dot_general(%s, %v_all) {dimension_numbers=(((0,), (0,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %t = jax.sin(%b) {accuracy=none} : f32[4] per_replica
  %c = jax.dot_general(%t, %v_all) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  %u = jax.mul(%c, %s) {out_dtype=none} : f32[4] per_replica
  %0, %1 = barrier(%w, %u) : f32[2,4] sharded(0), f32[4] per_replica
  %w_all_1 = all_gather(%0) {axis=0, group_size=2} : f32[4,4] mirrored
  %d = jax.dot_general(%1, %w_all_1) {dimension_numbers=(((0,), (1,)), ((), ())), precision=none, preferred_element_type=dtype<f32>, out_sharding=none} : f32[4] per_replica
  return per_replica %d, per_replica %1
}

# title: a value that is returned, and one that is computed, stay
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", sharded_along=0}
(%w: f32[2,4] sharded(0) = @w, %x: f32[4,4] per_replica) {
  %w_all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %x_all = all_gather(%x) {axis=0, group_size=2} : f32[8,4] mirrored
  %a = jax.sin(%w_all) {accuracy=none} : f32[4,4] mirrored
  %b = jax.sin(%a) {accuracy=none} : f32[4,4] mirrored
  %c = jax.mul(%b, %w_all) {out_dtype=none} : f32[4,4] mirrored
  %m = jax.sin(%x_all) {accuracy=none} : f32[8,4] mirrored
  %n = jax.sin(%m) {accuracy=none} : f32[8,4] mirrored
  %o = jax.mul(%n, %x_all) {out_dtype=none} : f32[8,4] mirrored
  return %c, %o, %w_all
}
-->
graph f on 2 replicas, stage spmd
  variable @w: f32[4,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, sharded_along=0}
(%w: f32[2,4] sharded(0) = @w, %x: f32[4,4] per_replica) {
  %w_all = all_gather(%w) {axis=0, group_size=2} : f32[4,4] mirrored
  %x_all = all_gather(%x) {axis=0, group_size=2} : f32[8,4] mirrored
  %a = jax.sin(%w_all) {accuracy=none} : f32[4,4] mirrored
  %b = jax.sin(%a) {accuracy=none} : f32[4,4] mirrored
  %c = jax.mul(%b, %w_all) {out_dtype=none} : f32[4,4] mirrored
  %m = jax.sin(%x_all) {accuracy=none} : f32[8,4] mirrored
  %n = jax.sin(%m) {accuracy=none} : f32[8,4] mirrored
  %o = jax.mul(%n, %x_all) {out_dtype=none} : f32[8,4] mirrored
  return %c, %o, %w_all
}
