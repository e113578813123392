# title: times one, on either side and as a broadcast literal
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %one = jax.broadcast_in_dim(1.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %a = jax.mul(%x, 1.0:f32) : f32[4] per_replica
  %b = jax.mul(1.0:f32, %a) : f32[4] per_replica
  %c = jax.mul(%b, %one) : f32[4] per_replica
  %d = jax.div(%c, 1.0:f32) : f32[4] per_replica
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %one = jax.broadcast_in_dim(1.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  return per_replica %x
}

# title: one divided by a value, and a complex number times one, stay
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %z: c64[4] per_replica) {
  %a = jax.div(1.0:f32, %x) : f32[4] per_replica
  %b = jax.mul(%z, complex(1.0, 0.0):c64) : c64[4] per_replica
  return per_replica %a, per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %z: c64[4] per_replica) {
  %a = jax.div(1.0:f32, %x) : f32[4] per_replica
  %b = jax.mul(%z, complex(1.0, 0.0):c64) : c64[4] per_replica
  return per_replica %a, per_replica %b
}

# title: adding the zero that changes nothing
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  %a = jax.add(%x, -0.0:f32) : f32[4] per_replica
  %b = jax.sub(%a, 0.0:f32) : f32[4] per_replica
  %c = jax.add(%n, 0:i32) : i32[4] per_replica
  %d = jax.sub(%c, 0:i32) : i32[4] per_replica
  %e = jax.add_any(0:i32, %d) : i32[4] per_replica
  return per_replica %b, per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  return per_replica %x, per_replica %n
}

# title: adding the zero that would turn -0.0 into 0.0 stays
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.add(%x, 0.0:f32) : f32[4] per_replica
  %b = jax.sub(%a, -0.0:f32) : f32[4] per_replica
  %c = jax.sub(0.0:f32, %b) : f32[4] per_replica
  return per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.add(%x, 0.0:f32) : f32[4] per_replica
  %b = jax.sub(%a, -0.0:f32) : f32[4] per_replica
  %c = jax.sub(0.0:f32, %b) : f32[4] per_replica
  return per_replica %c
}

# title: integers times zero are zero, floats are not
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  %zero = constant() {value=array<i32[4]: 0, 0, 0, 0>} : i32[4] mirrored
  %a = jax.mul(%n, %zero) : i32[4] per_replica
  %b = jax.mul(%x, 0.0:f32) : f32[4] per_replica
  return per_replica %a, per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  %zero = constant() {value=array<i32[4]: 0, 0, 0, 0>} : i32[4] mirrored
  %b = jax.mul(%x, 0.0:f32) : f32[4] per_replica
  return per_replica %zero, per_replica %b
}

# title: bits that change nothing
graph f on 2 replicas, stage spmd
(%n: i32[4] per_replica, %p: bool[4] per_replica) {
  %a = jax.and(%n, -1:i32) : i32[4] per_replica
  %b = jax.or(%a, 0:i32) : i32[4] per_replica
  %c = jax.xor(%b, 0:i32) : i32[4] per_replica
  %d = jax.shift_left(%c, 0:i32) : i32[4] per_replica
  %e = jax.and(true:bool, %p) : bool[4] per_replica
  %f = jax.or(%e, %e) : bool[4] per_replica
  return per_replica %d, per_replica %f
}
-->
graph f on 2 replicas, stage spmd
(%n: i32[4] per_replica, %p: bool[4] per_replica) {
  return per_replica %n, per_replica %p
}

# title: bits that change something stay
graph f on 2 replicas, stage spmd
(%n: i32[4] per_replica) {
  %a = jax.and(%n, 1:i32) : i32[4] per_replica
  %b = jax.or(%a, -1:i32) : i32[4] per_replica
  %c = jax.shift_right_logical(0:i32, %b) : i32[4] per_replica
  return per_replica %c
}
-->
graph f on 2 replicas, stage spmd
(%n: i32[4] per_replica) {
  %a = jax.and(%n, 1:i32) : i32[4] per_replica
  %b = jax.or(%a, -1:i32) : i32[4] per_replica
  %c = jax.shift_right_logical(0:i32, %b) : i32[4] per_replica
  return per_replica %c
}

# title: the larger and the smaller of a value and itself
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.max(%x, %x) : f32[4] per_replica
  %b = jax.min(%a, %x) : f32[4] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  return per_replica %x
}

# title: what undoes itself
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %p: bool[4] per_replica) {
  %a = jax.neg(%x) : f32[4] per_replica
  %b = jax.neg(%a) : f32[4] per_replica
  %c = jax.not(%p) : bool[4] per_replica
  %d = jax.not(%c) : bool[4] per_replica
  return per_replica %b, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %p: bool[4] per_replica) {
  %a = jax.neg(%x) : f32[4] per_replica
  %c = jax.not(%p) : bool[4] per_replica
  return per_replica %x, per_replica %p
}

# title: transposes are composed
graph f on 2 replicas, stage spmd
(%x: f32[2,3,4] per_replica) {
  %a = jax.transpose(%x) {permutation=(1, 2, 0)} : f32[3,4,2] per_replica
  %b = jax.transpose(%a) {permutation=(1, 0, 2)} : f32[4,3,2] per_replica
  %c = jax.transpose(%a) {permutation=(2, 0, 1)} : f32[2,3,4] per_replica
  %d = jax.transpose(%c) {permutation=(0, 1, 2)} : f32[2,3,4] per_replica
  return per_replica %b, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,3,4] per_replica) {
  %a = jax.transpose(%x) {permutation=(1, 2, 0)} : f32[3,4,2] per_replica
  %b = jax.transpose(%x) {permutation=(2, 1, 0)} : f32[4,3,2] per_replica
  return per_replica %b, per_replica %x
}

# title: reshapes are composed
graph f on 2 replicas, stage spmd
(%x: f32[2,6] per_replica) {
  %a = jax.reshape(%x) {new_sizes=(3, 4), dimensions=none, sharding=none} : f32[3,4] per_replica
  %b = jax.reshape(%a) {new_sizes=(12,), dimensions=none, sharding=none} : f32[12] per_replica
  %c = jax.reshape(%b) {new_sizes=(2, 6), dimensions=none, sharding=none} : f32[2,6] per_replica
  %d = reshape(%b) {shape=(4, 3)} : f32[4,3] per_replica
  %e = reshape(%d) {shape=(12,)} : f32[12] per_replica
  return per_replica %b, per_replica %c, per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,6] per_replica) {
  %a = jax.reshape(%x) {new_sizes=(3, 4), dimensions=none, sharding=none} : f32[3,4] per_replica
  %b = jax.reshape(%x) {new_sizes=(12,), dimensions=none, sharding=none} : f32[12] per_replica
  %d = reshape(%b) {shape=(4, 3)} : f32[4,3] per_replica
  return per_replica %b, per_replica %x, per_replica %b
}

# title: a reshape that also transposes stays
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica) {
  %a = jax.reshape(%x) {new_sizes=(2, 3), dimensions=(1, 0), sharding=none} : f32[2,3] per_replica
  return per_replica %a
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica) {
  %a = jax.reshape(%x) {new_sizes=(2, 3), dimensions=(1, 0), sharding=none} : f32[2,3] per_replica
  return per_replica %a
}

# title: conversions to the same dtype, and there and back
graph f on 2 replicas, stage spmd
(%x: bf16[4] per_replica) {
  %a = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
  %b = jax.convert_element_type(%a) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %c = jax.convert_element_type(%b) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
  %d = jax.convert_element_type(%b) {new_dtype=dtype<f16>, weak_type=false, sharding=none} : f16[4] per_replica
  return per_replica %c, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: bf16[4] per_replica) {
  %b = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %d = jax.convert_element_type(%x) {new_dtype=dtype<f16>, weak_type=false, sharding=none} : f16[4] per_replica
  return per_replica %x, per_replica %d
}

# title: a conversion that rounds stays
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  %a = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
  %b = jax.convert_element_type(%a) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %c = jax.convert_element_type(%n) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %d = jax.convert_element_type(%c) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[4] per_replica
  return per_replica %b, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  %a = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, weak_type=false, sharding=none} : bf16[4] per_replica
  %b = jax.convert_element_type(%a) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %c = jax.convert_element_type(%n) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[4] per_replica
  %d = jax.convert_element_type(%c) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[4] per_replica
  return per_replica %b, per_replica %d
}

# title: operations that take or put the whole
graph f on 2 replicas, stage spmd
(%x: f32[2,4] per_replica, %i: i32[] per_replica) {
  %a = jax.broadcast_in_dim(%x) {shape=(2, 4), broadcast_dimensions=(0, 1), sharding=none} : f32[2,4] per_replica
  %b = jax.slice(%a) {start_indices=(0, 0), limit_indices=(2, 4), strides=none} : f32[2,4] per_replica
  %c = jax.dynamic_slice(%b, %i, %i) {slice_sizes=(2, 4)} : f32[2,4] per_replica
  %d = jax.concatenate(%c) {dimension=0} : f32[2,4] per_replica
  %f = jax.copy(%d) : f32[2,4] per_replica
  %g = jax.squeeze(%f) {dimensions=()} : f32[2,4] per_replica
  %h = jax.dynamic_update_slice(%x, %g, %i, %i) : f32[2,4] per_replica
  return per_replica %h
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,4] per_replica, %i: i32[] per_replica) {
  return per_replica %x
}

# title: a part of a value is not the value
graph f on 2 replicas, stage spmd
(%x: f32[2,4] per_replica) {
  %a = jax.slice(%x) {start_indices=(0, 1), limit_indices=(2, 4), strides=none} : f32[2,3] per_replica
  %b = jax.dynamic_update_slice(%x, %a, 0:i32, 0:i32) : f32[2,4] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,4] per_replica) {
  %a = jax.slice(%x) {start_indices=(0, 1), limit_indices=(2, 4), strides=none} : f32[2,3] per_replica
  %b = jax.dynamic_update_slice(%x, %a, 0:i32, 0:i32) : f32[2,4] per_replica
  return per_replica %b
}

# title: a predicate that is known, and cases that are one
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica, %p: bool[4] per_replica) {
  %all = jax.broadcast_in_dim(true:bool) {shape=(4,), broadcast_dimensions=(), sharding=none} : bool[4] mirrored
  %a = jax.select_n(%all, %x, %y) : f32[4] per_replica
  %b = jax.select_n(false:bool, %a, %x) : f32[4] per_replica
  %c = jax.select_n(%p, %b, %b) : f32[4] per_replica
  %d = jax.select_n(%p, %c, %x) : f32[4] per_replica
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %y: f32[4] per_replica, %p: bool[4] per_replica) {
  %all = jax.broadcast_in_dim(true:bool) {shape=(4,), broadcast_dimensions=(), sharding=none} : bool[4] mirrored
  %d = jax.select_n(%p, %y, %x) : f32[4] per_replica
  return per_replica %d
}

# title: scaling by one, by whole numbers and by powers of two
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  %a = scale(%x) {factor=1.0} : f32[4] per_replica
  %b = scale(%a) {factor=2} : f32[4] per_replica
  %c = scale(%b) {factor=4.0} : f32[4] per_replica
  %d = scale(%n) {factor=3} : i32[4] per_replica
  %e = scale(%d) {factor=5} : i32[4] per_replica
  return per_replica %c, per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[4] per_replica) {
  %b = scale(%x) {factor=2} : f32[4] per_replica
  %c = scale(%x) {factor=8.0} : f32[4] per_replica
  %d = scale(%n) {factor=3} : i32[4] per_replica
  %e = scale(%n) {factor=15} : i32[4] per_replica
  return per_replica %c, per_replica %e
}

# title: two scalings that round stay two
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = scale(%x) {factor=0.1} : f32[4] per_replica
  %b = scale(%a) {factor=3.0} : f32[4] per_replica
  %c = scale(%b) {factor=0.5} : f32[4] per_replica
  %d = scale(%c) {factor=2.0} : f32[4] per_replica
  return per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = scale(%x) {factor=0.1} : f32[4] per_replica
  %b = scale(%a) {factor=3.0} : f32[4] per_replica
  %c = scale(%b) {factor=0.5} : f32[4] per_replica
  %d = scale(%c) {factor=2.0} : f32[4] per_replica
  return per_replica %d
}

# title: packing one value, and what was unpacked
graph f on 2 replicas, stage spmd
(%x: f32[12] per_replica, %y: f32[4] per_replica) {
  %a, %b = unpack(%x) {shapes=((2, 3), (6,))} : f32[2,3] per_replica, f32[6] per_replica
  %c = pack(%a, %b) : f32[12] per_replica
  %d = pack(%y) : f32[4] per_replica
  %e = pack(%b, %a) : f32[12] per_replica
  return per_replica %c, per_replica %d, per_replica %e
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[12] per_replica, %y: f32[4] per_replica) {
  %a, %b = unpack(%x) {shapes=((2, 3), (6,))} : f32[2,3] per_replica, f32[6] per_replica
  %e = pack(%b, %a) : f32[12] per_replica
  return per_replica %x, per_replica %y, per_replica %e
}

# title: unpacking what was packed
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica, %y: f32[4] per_replica) {
  %a = pack(%x, %y) : f32[10] per_replica
  %b, %c = unpack(%a) {shapes=((2, 3), (4,))} : f32[2,3] per_replica, f32[4] per_replica
  %d, %e = unpack(%a) {shapes=((3, 2), (4,))} : f32[3,2] per_replica, f32[4] per_replica
  %f = unpack(%y) {shapes=((2, 2),)} : f32[2,2] per_replica
  %g = concatenate(%b) {axis=0} : f32[2,3] per_replica
  return per_replica %g, per_replica %c, per_replica %d, per_replica %f
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[2,3] per_replica, %y: f32[4] per_replica) {
  %a = pack(%x, %y) : f32[10] per_replica
  %d, %e = unpack(%a) {shapes=((3, 2), (4,))} : f32[3,2] per_replica, f32[4] per_replica
  %0 = reshape(%y) {shape=(2, 2)} : f32[2,2] per_replica
  return per_replica %x, per_replica %y, per_replica %d, per_replica %0
}

# title: the branch that is taken stands where the cond stood
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = cond(7:i32, %x) : f32[4] per_replica
    branch_0(%y: f32[4] per_replica) {
      return %y
    }
    branch_1(%y: f32[4] per_replica) {
      %s = jax.floor(%y) : f32[4] per_replica
      return %s
    }
  %b = cond(1:i32, %a) : f32[4] per_replica
    branch_0(%y: f32[4] per_replica) {
      return %y
    }
    branch_1(%y: f32[4] per_replica) {
      %s = jax.mul(%y, 1.0:f32) : f32[4] per_replica
      return %s
    }
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %s = jax.floor(%x) : f32[4] per_replica
  return per_replica %s
}

# title: inside a loop
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a, %b = scan(%x, %x) {num_consts=0, num_carry=1, length=4, reverse=false} : f32[4] per_replica, f32[4] per_replica
    body(%c: f32[4] per_replica, %e: f32[] per_replica) {
      %n = jax.neg(%c) : f32[4] per_replica
      %m = jax.neg(%n) : f32[4] per_replica
      %s = jax.floor(%m) : f32[4] per_replica
      return %s, %e
    }
  return per_replica %a, per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a, %b = scan(%x, %x) {length=4, reverse=false, num_consts=0, num_carry=1} : f32[4] per_replica, f32[4] per_replica
    body(%c: f32[4] per_replica, %e: f32[] per_replica) {
      %n = jax.neg(%c) : f32[4] per_replica
      %s = jax.floor(%c) : f32[4] per_replica
      return %s, %e
    }
  return per_replica %a, per_replica %b
}

# title: a distribution that says more takes the place of one that says less
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored, %v: f32[4] per_replica) {
  %p = constant() {value=array<bool[4]: true, true, true, true>} : bool[4] mirrored
  %a = jax.select_n(%p, %v, %w) : f32[4] per_replica
  %b = jax.floor(%a) : f32[4] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%w: f32[4] mirrored, %v: f32[4] per_replica) {
  %p = constant() {value=array<bool[4]: true, true, true, true>} : bool[4] mirrored
  %b = jax.floor(%w) : f32[4] mirrored
  return per_replica %b
}

# title: left alone: integers by way of a float, which are cut off, where integers wrap
graph f on 1 replica, stage spmd
(%x: i8[3] mirrored) {
  %a = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[3] mirrored
  %b = jax.convert_element_type(%a) {new_dtype=dtype<u8>, weak_type=false, sharding=none} : u8[3] mirrored
  %c = jax.convert_element_type(%a) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[3] mirrored
  return %b, %c
}
-->
graph f on 1 replica, stage spmd
(%x: i8[3] mirrored) {
  %a = jax.convert_element_type(%x) {new_dtype=dtype<f32>, weak_type=false, sharding=none} : f32[3] mirrored
  %b = jax.convert_element_type(%a) {new_dtype=dtype<u8>, weak_type=false, sharding=none} : u8[3] mirrored
  %c = jax.convert_element_type(%x) {new_dtype=dtype<i32>, weak_type=false, sharding=none} : i32[3] mirrored
  return %b, %c
}

# title: a branch that is known to be taken, with operands of which more is known outside
graph f on 2 replicas, stage spmd
(%x: f32[4] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  %y = cond(0:i32, %x, %z) : f32[4] mirrored
    branch_0(%p: f32[4] mirrored, %q: f32[4] mirrored) {
      %s = jax.sub(%p, %q) : f32[4] mirrored
      return %s
    }
    branch_1(%p: f32[4] mirrored, %q: f32[4] mirrored) {
      return %p
    }
  return %y
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] mirrored) {
  %z = jax.broadcast_in_dim(0.0:f32) {shape=(4,), broadcast_dimensions=(), sharding=none} : f32[4] mirrored
  return %x
}

# title: a variable stored in slices is assigned a number that all slices share
graph f on 2 replicas, stage spmd
  variable @m: i32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: i32[2] sharded(0) = @m) {
  %b = jax.broadcast_in_dim(0:i32) {shape=(2,), broadcast_dimensions=(), sharding=none} : i32[2] mirrored
  %own = jax.mul(%m, %b) {out_dtype=none} : i32[2] sharded(0)
  return %own -> @m
}
-->
graph f on 2 replicas, stage spmd
  variable @m: i32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true, sharded_along=0}
(%m: i32[2] sharded(0) = @m) {
  %b = jax.broadcast_in_dim(0:i32) {shape=(2,), broadcast_dimensions=(), sharding=none} : i32[2] mirrored
  return %b -> @m
}

# title: an answer that does not fit leaves nothing behind
graph f on 2 replicas, stage spmd
(%x: f32[8] per_replica) {
  %r = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[4] sharded(0)
  %u = unpack(%r) {shapes=((2,2),), axes=(1,)} : f32[2,2] sharded(1)
  return per_replica %u
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[8] per_replica) {
  %r = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2} : f32[4] sharded(0)
  %u = unpack(%r) {shapes=((2, 2),), axes=(1,)} : f32[2,2] sharded(1)
  return per_replica %u
}
