# title: a read is the input, an assignment an output
graph f on 2 replicas, stage logical
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[2] mirrored) {
  %w = read() {variable=@w} : f32[2] mirrored
  %sum = jax.add(%w, %x) : f32[2] mirrored
  %new = aggregate(%sum) {variable=@w, context="cross"} : f32[2] mirrored
  assign(%new) {variable=@w}
  %again = read() {variable=@w} : f32[2] mirrored
  return %w, %again
}
-->
graph f on 2 replicas, stage placed
  variable @w: f32[2] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%w: f32[2] mirrored = @w, %x: f32[2] mirrored) {
  %sum = jax.add(%w, %x) : f32[2] mirrored
  return %sum -> @w, %w, %sum
}

# title: what replicas write is combined as the variable says
graph f on 2 replicas, stage logical
  variable @total: f32[] mirrored {synchronization="on_write", aggregation="sum", trainable=true}
  variable @mean: f32[] mirrored {synchronization="on_write", aggregation="mean", trainable=true}
  variable @first: f32[] mirrored {synchronization="on_write", aggregation="only_first_replica", trainable=true}
  variable @own: f32[] per_replica {synchronization="on_read", aggregation="sum", trainable=false}
(%x: f32[] per_replica) {
  %a = aggregate(%x) {variable=@total, context="replica"} : f32[] mirrored
  assign(%a) {variable=@total}
  %b = aggregate(%x) {variable=@mean, context="replica"} : f32[] mirrored
  assign(%b) {variable=@mean}
  %c = aggregate(%x) {variable=@first, context="replica"} : f32[] mirrored
  assign(%c) {variable=@first}
  %d = aggregate(%x) {variable=@own, context="replica"} : f32[] per_replica
  assign(%d) {variable=@own}
  return
}
-->
graph f on 2 replicas, stage placed
  variable @total: f32[] mirrored {synchronization="on_write", aggregation="sum", trainable=true, assigned=true}
  variable @mean: f32[] mirrored {synchronization="on_write", aggregation="mean", trainable=true, assigned=true}
  variable @first: f32[] mirrored {synchronization="on_write", aggregation="only_first_replica", trainable=true, assigned=true}
  variable @own: f32[] per_replica {synchronization="on_read", aggregation="sum", trainable=false, assigned=true}
(%total: f32[] mirrored = @total, %mean: f32[] mirrored = @mean, %first: f32[] mirrored = @first, %own: f32[] per_replica = @own, %x: f32[] per_replica) {
  %0 = all_reduce(%x) {reducer="sum", group_size=2} : f32[] mirrored
  %1 = all_reduce(%x) {reducer="mean", group_size=2} : f32[] mirrored
  %2 = select_replica(%x) {replica=0, group_size=2} : f32[] per_replica
  %3 = all_reduce(%2) {reducer="sum", group_size=2} : f32[] mirrored
  return %0 -> @total, %1 -> @mean, %3 -> @first, %x -> @own
}

# title: a scan carries what it assigns and takes what it reads
graph f on 2 replicas, stage logical
  variable @step: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true}
  variable @rate: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[3] per_replica) {
  %c, %ys = scan(0.0:f32, %x) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : f32[] mirrored, f32[3] per_replica
    body(%c_in: f32[] mirrored, %row: f32[] per_replica) {
      %rate = read() {variable=@rate} : f32[] mirrored
      %step = read() {variable=@step} : f32[] mirrored
      %next = jax.add(%step, %rate) : f32[] mirrored
      assign(%next) {variable=@step}
      %y = jax.mul(%row, %next) {out_dtype=none} : f32[] per_replica
      return %c_in, %y
    }
  %last = read() {variable=@step} : f32[] mirrored
  return %c, per_replica %ys, %last
}
-->
graph f on 2 replicas, stage placed
  variable @step: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
  variable @rate: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%step: f32[] mirrored = @step, %rate: f32[] mirrored = @rate, %x: f32[3] per_replica) {
  %0, %1, %2 = scan(%rate, 0.0:f32, %step, %x) {length=3, reverse=false, unroll=1, num_consts=1, num_carry=2} : f32[] mirrored, f32[] mirrored, f32[3] per_replica
    body(%rate_1: f32[] mirrored, %c_in: f32[] mirrored, %step_1: f32[] mirrored, %row: f32[] per_replica) {
      %next = jax.add(%step_1, %rate_1) : f32[] mirrored
      %y = jax.mul(%row, %next) {out_dtype=none} : f32[] per_replica
      return %c_in, %next, %y
    }
  return %1 -> @step, %0, per_replica %2, %1
}

# title: every branch returns the state, changed or not
graph f on 2 replicas, stage logical
  variable @v: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%n: i32[] mirrored) {
  %y = cond(%n) : f32[] mirrored
    branch_0() {
      %old = read() {variable=@v} : f32[] mirrored
      return %old
    }
    branch_1() {
      assign(5.0:f32) {variable=@v}
      return 1.0:f32
    }
  return %y
}
-->
graph f on 2 replicas, stage placed
  variable @v: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%v: f32[] mirrored = @v, %n: i32[] mirrored) {
  %0, %1 = cond(%n, %v) : f32[] mirrored, f32[] mirrored
    branch_0(%v_1: f32[] mirrored) {
      return %v_1, %v_1
    }
    branch_1(%v_2: f32[] mirrored) {
      return 1.0:f32, 5.0:f32
    }
  return %1 -> @v, %0
}

# title: a while loop reads in its condition what its body assigns
graph f on 2 replicas, stage logical
  variable @v: i32[] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%limit: i32[] mirrored) {
  %i = while(%limit, 0:i32) {num_cond_consts=1, num_body_consts=0} : i32[] mirrored
    condition(%n: i32[] mirrored, %i_in: i32[] mirrored) {
      %v = read() {variable=@v} : i32[] mirrored
      %less = jax.lt(%v, %n) : bool[] mirrored
      return %less
    }
    body(%i_in_1: i32[] mirrored) {
      %v_1 = read() {variable=@v} : i32[] mirrored
      %next = jax.add(%v_1, 1:i32) : i32[] mirrored
      assign(%next) {variable=@v}
      %count = jax.add(%i_in_1, 1:i32) : i32[] mirrored
      return %count
    }
  return %i
}
-->
graph f on 2 replicas, stage placed
  variable @v: i32[] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%v: i32[] mirrored = @v, %limit: i32[] mirrored) {
  %0, %1 = while(%limit, 0:i32, %v) {num_cond_consts=1, num_body_consts=0} : i32[] mirrored, i32[] mirrored
    condition(%n: i32[] mirrored, %i_in: i32[] mirrored, %v_1: i32[] mirrored) {
      %less = jax.lt(%v_1, %n) : bool[] mirrored
      return %less
    }
    body(%i_in_1: i32[] mirrored, %v_2: i32[] mirrored) {
      %next = jax.add(%v_2, 1:i32) : i32[] mirrored
      %count = jax.add(%i_in_1, 1:i32) : i32[] mirrored
      return %count, %next
    }
  return %1 -> @v, %0
}

# title: a cell the program made lives in a value only
graph f on 2 replicas, stage logical
  variable @cell_0: f32[] per_replica {synchronization="on_read", aggregation="none", trainable=true, is_local=true}
(%x: f32[] per_replica) {
  assign(%x) {variable=@cell_0}
  %old = read() {variable=@cell_0} : f32[] per_replica
  %new = jax.add(%old, 1.0:f32) : f32[] per_replica
  assign(%new) {variable=@cell_0}
  %last = read() {variable=@cell_0} : f32[] per_replica
  return per_replica %last
}
-->
graph f on 2 replicas, stage placed
(%x: f32[] per_replica) {
  %new = jax.add(%x, 1.0:f32) : f32[] per_replica
  return per_replica %new
}

# title: a variable in slices that groups of replicas share out, each group all of it
graph f on 4 replicas in 2 groups, stage logical
  variable @v: f32[4,3] mirrored {synchronization="on_write", aggregation="sum", trainable=true, sharded_along=0}
(%x: f32[4,3] per_replica) {
  %v = read() {variable=@v} : f32[4,3] mirrored
  %y = jax.mul(%v, %x) {out_dtype=none} : f32[4,3] per_replica
  %a = aggregate(%y) {variable=@v, context="replica"} : f32[4,3] mirrored
  assign(%a) {variable=@v}
  return
}
-->
graph f on 4 replicas in 2 groups, stage placed
  variable @v: f32[4,3] mirrored {synchronization="on_write", aggregation="sum", trainable=true, assigned=true, sharded_along=0}
(%v: f32[2,3] sharded(0) over member = @v, %x: f32[4,3] per_replica) {
  %v_1 = all_gather(%v) {axis=0, group_size=2, num_groups=2} : f32[4,3] mirrored
  %y = jax.mul(%v_1, %x) {out_dtype=none} : f32[4,3] per_replica
  %0 = all_reduce(%y) {reducer="sum", group_size=4} : f32[4,3] mirrored
  %v_2 = own_slice(%0) {axis=0, group_size=2, num_groups=2} : f32[2,3] sharded(0) over member
  return %v_2 -> @v
}
