# title: a carry that is joined with a per-replica value becomes per replica
graph f on 2 replicas, stage logical
(%x: f32[3] per_replica) {
  %c, %ys = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[], f32[3]
    body(%c_in: f32[], %row: f32[]) {
      %sum = jax.add(%c_in, %row) : f32[]
      return %sum, %c_in
    }
  return per_replica %c, per_replica %ys
}
-->
graph f on 2 replicas, stage logical
(%x: f32[3] per_replica) {
  %c, %ys = scan(0.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] per_replica, f32[3] per_replica
    body(%c_in: f32[] per_replica, %row: f32[] per_replica) {
      %sum = jax.add(%c_in, %row) : f32[] per_replica
      return %sum, %c_in
    }
  return per_replica %c, per_replica %ys
}

# title: a carry nothing per-replica reaches stays mirrored, whatever is beside it
graph f on 2 replicas, stage logical
(%x: f32[3] per_replica, %w: f32[] mirrored) {
  %c, %ys = scan(%w, 1.0:f32, %x) {num_consts=1, num_carry=1, length=3, reverse=false, unroll=1} : f32[], f32[3]
    body(%k: f32[], %c_in: f32[], %row: f32[]) {
      %next = jax.mul(%c_in, %k) {out_dtype=none} : f32[]
      %y = jax.mul(%row, %c_in) {out_dtype=none} : f32[]
      return %next, %y
    }
  return %c, per_replica %ys
}
-->
graph f on 2 replicas, stage logical
(%x: f32[3] per_replica, %w: f32[] mirrored) {
  %c, %ys = scan(%w, 1.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=1} : f32[] mirrored, f32[3] per_replica
    body(%k: f32[] mirrored, %c_in: f32[] mirrored, %row: f32[] per_replica) {
      %next = jax.mul(%c_in, %k) {out_dtype=none} : f32[] mirrored
      %y = jax.mul(%row, %c_in) {out_dtype=none} : f32[] per_replica
      return %next, %y
    }
  return %c, per_replica %ys
}

# title: the carry of a loop that replicas leave at different times differs
graph f on 2 replicas, stage logical
(%n: i32[] per_replica) {
  %i, %m = while(%n, 0:i32, 1:i32) {num_cond_consts=1, num_body_consts=0} : i32[], i32[]
    condition(%limit: i32[], %i_in: i32[], %m_in: i32[]) {
      %less = jax.lt(%i_in, %limit) : bool[]
      return %less
    }
    body(%i_in_1: i32[], %m_in_1: i32[]) {
      %next = jax.add(%i_in_1, 1:i32) : i32[]
      return %next, %m_in_1
    }
  return per_replica %i, per_replica %m
}
-->
graph f on 2 replicas, stage logical
(%n: i32[] per_replica) {
  %i, %m = while(%n, 0:i32, 1:i32) {num_cond_consts=1, num_body_consts=0} : i32[] per_replica, i32[] per_replica
    condition(%limit: i32[] per_replica, %i_in: i32[] mirrored, %m_in: i32[] mirrored) {
      %less = jax.lt(%i_in, %limit) : bool[] per_replica
      return %less
    }
    body(%i_in_1: i32[] mirrored, %m_in_1: i32[] mirrored) {
      %next = jax.add(%i_in_1, 1:i32) : i32[] mirrored
      return %next, %m_in_1
    }
  return per_replica %i, per_replica %m
}

# title: a branch chosen by each replica for itself gives a per-replica value
graph f on 2 replicas, stage logical
(%n: i32[] per_replica, %a: f32[2] mirrored, %b: f32[2] mirrored) {
  %y = cond(%n, %a, %b) : f32[2]
    branch_0(%p: f32[2], %q: f32[2]) {
      return %p
    }
    branch_1(%p_1: f32[2], %q_1: f32[2]) {
      return %q_1
    }
  return per_replica %y
}
-->
graph f on 2 replicas, stage logical
(%n: i32[] per_replica, %a: f32[2] mirrored, %b: f32[2] mirrored) {
  %y = cond(%n, %a, %b) : f32[2] per_replica
    branch_0(%p: f32[2] mirrored, %q: f32[2] mirrored) {
      return %p
    }
    branch_1(%p_1: f32[2] mirrored, %q_1: f32[2] mirrored) {
      return %q_1
    }
  return per_replica %y
}

# title: a collective in a loop makes its carry mirrored from the first step on
graph f on 2 replicas, stage logical
(%x: f32[3] per_replica) {
  %c = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[]
    body(%c_in: f32[], %row: f32[]) {
      %mean = all_reduce(%row) {reducer="mean", group_size=2} : f32[] mirrored
      %sum = jax.add(%c_in, %mean) : f32[]
      return %sum
    }
  return %c
}
-->
graph f on 2 replicas, stage logical
(%x: f32[3] per_replica) {
  %c = scan(0.0:f32, %x) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[] mirrored
    body(%c_in: f32[] mirrored, %row: f32[] per_replica) {
      %mean = all_reduce(%row) {reducer="mean", group_size=2} : f32[] mirrored
      %sum = jax.add(%c_in, %mean) : f32[] mirrored
      return %sum
    }
  return %c
}
