# title: the same operation on the same operands
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = jax.add(%x, %y) : f32[4] per_replica
  %b = jax.add(%x, %y) : f32[4] per_replica
  %c = jax.mul(%a, %b) : f32[4] per_replica
  return per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = jax.add(%x, %y) : f32[4] per_replica
  %c = jax.mul(%a, %a) : f32[4] per_replica
  return per_replica %c
}

# title: other operands, other order, other literals stay
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = jax.sub(%x, %y) : f32[4] per_replica
  %b = jax.sub(%y, %x) : f32[4] per_replica
  %c = jax.max(%x, 0.0:f32) : f32[4] per_replica
  %d = jax.max(%x, -0.0:f32) : f32[4] per_replica
  %e = jax.max(%x, 1.0:f32) : f32[4] per_replica
  %f = jax.max(%x, 1.0:f32) : f32[4] per_replica
  return per_replica %a, per_replica %b, per_replica %c, per_replica %d, per_replica %e, per_replica %f
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica) {
  %a = jax.sub(%x, %y) : f32[4] per_replica
  %b = jax.sub(%y, %x) : f32[4] per_replica
  %c = jax.max(%x, 0.0:f32) : f32[4] per_replica
  %d = jax.max(%x, -0.0:f32) : f32[4] per_replica
  %e = jax.max(%x, 1.0:f32) : f32[4] per_replica
  return per_replica %a, per_replica %b, per_replica %c, per_replica %d, per_replica %e, per_replica %e
}

# title: parameters count
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.reduce_sum(%x) {axes=(0,), out_sharding=none} : f32[] per_replica
  %b = scale(%x) {factor=0.5} : f32[4] per_replica
  %c = scale(%x) {factor=0.25} : f32[4] per_replica
  %d = scale(%x) {factor=0.5} : f32[4] per_replica
  %e = jax.reduce_sum(%x) {axes=(0,), out_sharding=none} : f32[] per_replica
  return per_replica %a, per_replica %b, per_replica %c, per_replica %d, per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.reduce_sum(%x) {axes=(0,), out_sharding=none} : f32[] per_replica
  %b = scale(%x) {factor=0.5} : f32[4] per_replica
  %c = scale(%x) {factor=0.25} : f32[4] per_replica
  return per_replica %a, per_replica %b, per_replica %c, per_replica %b, per_replica %a
}

# title: constants with the same bytes
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = constant() {value=array<f32[2]: 0.0, 1.0>} : f32[2] mirrored
  %b = constant() {value=array<f32[2]: 0.0, 1.0>} : f32[2] mirrored
  %c = constant() {value=array<f32[2]: -0.0, 1.0>} : f32[2] mirrored
  return %a, %b, %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = constant() {value=array<f32[2]: 0.0, 1.0>} : f32[2] mirrored
  %c = constant() {value=array<f32[2]: -0.0, 1.0>} : f32[2] mirrored
  return %a, %a, %c
}

# title: equal collectives
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %b = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %c = all_reduce(%x) {reducer="max", group_size=2} : f32[4] mirrored
  return %a, %b, %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %c = all_reduce(%x) {reducer="max", group_size=2} : f32[4] mirrored
  return %a, %a, %c
}

# title: one merge makes the next
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.floor(%x) : f32[4] per_replica
  %b = jax.floor(%x) : f32[4] per_replica
  %c = jax.abs(%a) : f32[4] per_replica
  %d = jax.abs(%b) : f32[4] per_replica
  %e = jax.add(%c, %d) : f32[4] per_replica
  return per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.floor(%x) : f32[4] per_replica
  %c = jax.abs(%a) : f32[4] per_replica
  %e = jax.add(%c, %c) : f32[4] per_replica
  return per_replica %e
}

# title: reads are merged up to the next assignment
graph f on 2 replicas, stage logical
variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored) {
  %a = read() {variable=@w} : f32[4] mirrored
  %b = read() {variable=@w} : f32[4] mirrored
  %c = jax.add(%a, %b) : f32[4] mirrored
  assign(%x) {variable=@w}
  %d = read() {variable=@w} : f32[4] mirrored
  %e = jax.add(%c, %d) : f32[4] mirrored
  return %e
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored) {
  %a = read() {variable=@w} : f32[4] mirrored
  %c = jax.add(%a, %a) : f32[4] mirrored
  assign(%x) {variable=@w}
  %d = read() {variable=@w} : f32[4] mirrored
  %e = jax.add(%c, %d) : f32[4] mirrored
  return %e
}

# title: an assignment in a loop is one too
graph f on 2 replicas, stage logical
variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored) {
  %a = read() {variable=@w} : f32[4] mirrored
  %u = scan(%x) {num_consts=0, num_carry=1, length=2, reverse=false} : f32[4] mirrored
    body(%c: f32[4] mirrored) {
      %r = read() {variable=@w} : f32[4] mirrored
      %s = jax.add(%c, %r) : f32[4] mirrored
      assign(%s) {variable=@w}
      return %s
    }
  %b = read() {variable=@w} : f32[4] mirrored
  return %a, %b, %u
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored) {
  %a = read() {variable=@w} : f32[4] mirrored
  %u = scan(%x) {length=2, reverse=false, num_consts=0, num_carry=1} : f32[4] mirrored
    body(%c: f32[4] mirrored) {
      %r = read() {variable=@w} : f32[4] mirrored
      %s = jax.add(%c, %r) : f32[4] mirrored
      assign(%s) {variable=@w}
      return %s
    }
  %b = read() {variable=@w} : f32[4] mirrored
  return %a, %b, %u
}

# title: nothing is merged across the border of a nested graph
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %r = replica_id() {group_size=2} : i32[] per_replica
  %a, %b = scan(%r) {num_consts=0, num_carry=1, length=2, reverse=false} : i32[] per_replica, i32[2] per_replica
    body(%c: i32[] per_replica) {
      %q = replica_id() {group_size=2} : i32[] per_replica
      %p = replica_id() {group_size=2} : i32[] per_replica
      %s = jax.add(%c, %q) : i32[] per_replica
      %t = jax.add(%c, %p) : i32[] per_replica
      return %s, %t
    }
  return per_replica %a, per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %r = replica_id() {group_size=2} : i32[] per_replica
  %a, %b = scan(%r) {length=2, reverse=false, num_consts=0, num_carry=1} : i32[] per_replica, i32[2] per_replica
    body(%c: i32[] per_replica) {
      %q = replica_id() {group_size=2} : i32[] per_replica
      %s = jax.add(%c, %q) : i32[] per_replica
      return %s, %s
    }
  return per_replica %a, per_replica %b
}
