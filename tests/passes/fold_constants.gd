# title: arithmetic on literals
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.div(1.0:f32, 4.0:f32) : f32[] mirrored
  %b = jax.add(%a, 2.0:f32) : f32[] mirrored
  %c = jax.sub(%b, 0.1:f32) : f32[] mirrored
  %d = jax.neg(%c) : f32[] mirrored
  %e = jax.mul(%x, %d) : f32[4] per_replica
  return per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %e = jax.mul(%x, -2.15:f32) : f32[4] per_replica
  return per_replica %e
}

# title: a scalar constant is a literal
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = constant() {value=array<f32[]: 0.5>} : f32[] mirrored
  %b = jax.mul(%x, %a) : f32[4] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %b = jax.mul(%x, 0.5:f32) : f32[4] per_replica
  return per_replica %b
}

# title: integers wrap around, and shrink
graph f on 2 replicas, stage spmd
(%x: i8[4] per_replica) {
  %a = jax.add(100:i8, 100:i8) : i8[] mirrored
  %b = jax.mul(65537:i32, 65537:i32) : i32[] mirrored
  %c = jax.convert_element_type(%b) {new_dtype=dtype<i8>, weak_type=false, sharding=none} : i8[] mirrored
  %d = jax.add(%x, %a) : i8[4] per_replica
  %e = jax.add(%d, %c) : i8[4] per_replica
  return per_replica %e, %b
}
-->
graph f on 2 replicas, stage spmd
(%x: i8[4] per_replica) {
  %d = jax.add(%x, -56:i8) : i8[4] per_replica
  %e = jax.add(%d, 1:i8) : i8[4] per_replica
  return per_replica %e, 131073:i32
}

# title: integer division stays
graph f on 2 replicas, stage spmd
() {
  %a = jax.div(-7:i32, 2:i32) : i32[] mirrored
  return %a
}
-->
graph f on 2 replicas, stage spmd
() {
  %a = jax.div(-7:i32, 2:i32) : i32[] mirrored
  return %a
}

# title: small constants, and literals beside them
graph f on 2 replicas, stage spmd
(%x: f32[2,2] per_replica) {
  %a = constant() {value=array<f32[4]: 1.0, 2.0, 3.0, 4.0>} : f32[4] mirrored
  %b = jax.mul(%a, 0.5:f32) : f32[4] mirrored
  %c = jax.reshape(%b) {new_sizes=(2, 2), dimensions=none, sharding=none} : f32[2,2] mirrored
  %d = jax.add(%x, %c) : f32[2,2] per_replica
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,2] per_replica) {
  %a = constant() {value=array<f32[4]: 1.0, 2.0, 3.0, 4.0>} : f32[4] mirrored
  %b = constant() {value=array<f32[4]: 0.5, 1.0, 1.5, 2.0>} : f32[4] mirrored
  %c = constant() {value=array<f32[2,2]: 0.5, 1.0, 1.5, 2.0>} : f32[2,2] mirrored
  %d = jax.add(%x, %c) : f32[2,2] per_replica
  return per_replica %d
}

# title: a literal that is broadcast stays, and is folded into what uses it
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %a = jax.broadcast_in_dim(3.0:f32) {shape=(3,), broadcast_dimensions=(), sharding=none} : f32[3] mirrored
  %b = jax.max(%a, 2.0:f32) : f32[3] mirrored
  %c = jax.mul(%x, %b) : f32[3] per_replica
  %d = jax.mul(%x, %a) : f32[3] per_replica
  return per_replica %c, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %a = jax.broadcast_in_dim(3.0:f32) {shape=(3,), broadcast_dimensions=(), sharding=none} : f32[3] mirrored
  %b = constant() {value=array<f32[3]: 3.0, 3.0, 3.0>} : f32[3] mirrored
  %c = jax.mul(%x, %b) : f32[3] per_replica
  %d = jax.mul(%x, %a) : f32[3] per_replica
  return per_replica %c, per_replica %d
}

# title: conversions between ordinary dtypes
graph f on 2 replicas, stage spmd
() {
  %a = jax.convert_element_type(0.1:f32) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[] mirrored
  %b = jax.convert_element_type(-2.9:f32) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[] mirrored
  %c = jax.convert_element_type(true:bool) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[] mirrored
  %d = jax.convert_element_type(3:i32) {new_dtype=dtype<bool>, weak_type=false, sharding=none} : bool[] mirrored
  %e = jax.convert_element_type(1e9:f32) {new_dtype=dtype<i8>, weak_type=false, sharding=none} : i8[] mirrored
  return %a, %b, %c, %d, %e
}
-->
graph f on 2 replicas, stage spmd
() {
  %e = jax.convert_element_type(1000000000.0:f32) {new_dtype=dtype<i8>, weak_type=false, sharding=none} : i8[] mirrored
  return 0.1:bf16, -2:i32, 1.0:f32, true:bool, %e
}

# title: comparisons and choices
graph f on 2 replicas, stage spmd
() {
  %a = jax.lt(1.0:f32, 2.0:f32) : bool[] mirrored
  %b = jax.eq(1:i32, 2:i32) : bool[] mirrored
  %c = jax.and(%a, %b) : bool[] mirrored
  %d = jax.not(%c) : bool[] mirrored
  %e = jax.select_n(%d, 1.0:f32, 2.0:f32) : f32[] mirrored
  return %d, %e
}
-->
graph f on 2 replicas, stage spmd
() {
  return true:bool, 2.0:f32
}

# title: reductions of what all replicas have
graph f on 2 replicas, stage spmd
(%x: f32[] per_replica) {
  %a = all_reduce(1.0:f32) {reducer="sum", group_size=2} : f32[] mirrored
  %b = all_reduce(3:i32) {reducer="max", group_size=2} : i32[] mirrored
  %c = all_reduce(0.1:f32) {reducer="mean", group_size=2} : f32[] mirrored
  %k = constant() {value=array<f32[2]: 1.0, 2.0>} : f32[2] mirrored
  %d = all_reduce(%k) {reducer="sum", group_size=2} : f32[2] mirrored
  %e = all_reduce(%x) {reducer="sum", group_size=2} : f32[] mirrored
  return %a, %b, %c, %d, %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[] per_replica) {
  %k = constant() {value=array<f32[2]: 1.0, 2.0>} : f32[2] mirrored
  %d = constant() {value=array<f32[2]: 2.0, 4.0>} : f32[2] mirrored
  %e = all_reduce(%x) {reducer="sum", group_size=2} : f32[] mirrored
  return 2.0:f32, 3:i32, 0.1:f32, %d, %e
}

# title: a scaled literal
graph f on 2 replicas, stage spmd
() {
  %a = all_reduce(4.0:f32) {reducer="sum", group_size=2} : f32[] mirrored
  %b = scale(%a) {factor=0.5} : f32[] mirrored
  return %b
}
-->
graph f on 2 replicas, stage spmd
() {
  return 4.0:f32
}

# title: before variables are placed
graph f on 2 replicas, stage logical
() {
  %a = reduce(2.0:f32) {reducer="sum", group_size=2} : f32[] mirrored
  return %a
}
-->
graph f on 2 replicas, stage logical
() {
  return 4.0:f32
}

# title: what numpy and JAX may compute differently stays
graph f on 2 replicas, stage spmd
() {
  %a = jax.mul(1e-30:f32, 1e-10:f32) : f32[] mirrored
  %b = jax.sub(inf:f32, inf:f32) : f32[] mirrored
  %c = jax.max(0.0:f32, -0.0:f32) : f32[] mirrored
  %d = jax.exp(1.0:f32) {accuracy=none} : f32[] mirrored
  return %a, %b, %c, %d
}
-->
graph f on 2 replicas, stage spmd
() {
  %a = jax.mul(1e-30:f32, 1e-10:f32) : f32[] mirrored
  %b = jax.sub(inf:f32, inf:f32) : f32[] mirrored
  %c = jax.max(0.0:f32, -0.0:f32) : f32[] mirrored
  %d = jax.exp(1.0:f32) {accuracy=none} : f32[] mirrored
  return %a, %b, %c, %d
}

# title: a result of many elements stays
graph f on 2 replicas, stage spmd
() {
  %a = jax.broadcast_in_dim(1.0:f32) {shape=(65,), broadcast_dimensions=(), sharding=none} : f32[65] mirrored
  %b = jax.add(%a, %a) : f32[65] mirrored
  return %b
}
-->
graph f on 2 replicas, stage spmd
() {
  %a = jax.broadcast_in_dim(1.0:f32) {shape=(65,), broadcast_dimensions=(), sharding=none} : f32[65] mirrored
  %b = jax.add(%a, %a) : f32[65] mirrored
  return %b
}

# title: inside a loop
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = scan(%x) {num_consts=0, num_carry=1, length=4, reverse=false} : f32[4] per_replica
    body(%c: f32[4] per_replica) {
      %h = jax.div(1.0:f32, 2.0:f32) : f32[] mirrored
      %s = jax.mul(%c, %h) : f32[4] per_replica
      return %s
    }
  return per_replica %a
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = scan(%x) {length=4, reverse=false, num_consts=0, num_carry=1} : f32[4] per_replica
    body(%c: f32[4] per_replica) {
      %s = jax.mul(%c, 0.5:f32) : f32[4] per_replica
      return %s
    }
  return per_replica %a
}

# title: left alone: a product of another dtype than its factors
graph f on 1 replica, stage spmd
() {
  %k = constant() {value=array<i8[2]: 100, -100>} : i8[2] mirrored
  %c = jax.mul(%k, 3:i8) {out_dtype=dtype<i32>} : i32[2] mirrored
  return %c
}
-->
graph f on 1 replica, stage spmd
() {
  %k = constant() {value=array<i8[2]: 100, -100>} : i8[2] mirrored
  %c = jax.mul(%k, 3:i8) {out_dtype=dtype<i32>} : i32[2] mirrored
  return %c
}
