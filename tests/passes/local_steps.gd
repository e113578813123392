# title: a mean of gradients goes, and every second step averages the copies
graph f on 2 replicas, stage logical
  variable @w: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] mirrored
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %g = all_reduce(%0) {reducer="mean", group_size=2} : f32[3] mirrored
  %1 = jax.sub(%w, %g) : f32[3] mirrored
  assign(%1) {variable=@w}
  return
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[3] per_replica {synchronization="on_write", aggregation="none", trainable=true, role="local"}
  variable @w.steps: i32[] mirrored {synchronization="on_write", aggregation="none", trainable=false, alone=true, role="steps", serves=("w",)}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] per_replica
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %1 = jax.sub(%w, %0) : f32[3] per_replica
  assign(%1) {variable=@w}
  %w_steps = read() {variable=@w.steps} : i32[] mirrored
  %2, %3 = count_step(%w_steps) {every=2} : i32[] mirrored, i32[] mirrored
  assign(%2) {variable=@w.steps}
  cond(%3) {every=2}
    stay() {
      return
    }
    synchronize() {
      %w_1 = read() {variable=@w} : f32[3] per_replica
      %w_2 = all_reduce(%w_1) {reducer="mean", group_size=2} : f32[3] mirrored
      assign(%w_2) {variable=@w}
      return
    }
  return
}

# title: a sum of gradients is taken twice, and the sum that is returned stays
graph f on 2 replicas, stage logical
  variable @w: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] mirrored
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %g = all_reduce(%0) {reducer="sum", group_size=2} : f32[3] mirrored
  %1 = jax.sub(%w, %g) : f32[3] mirrored
  assign(%1) {variable=@w}
  %2 = reduce(%0) {reducer="sum", group_size=2} : f32[3] mirrored
  return %2
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[3] per_replica {synchronization="on_write", aggregation="none", trainable=true, role="local"}
  variable @w.steps: i32[] mirrored {synchronization="on_write", aggregation="none", trainable=false, alone=true, role="steps", serves=("w",)}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] per_replica
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %1 = scale(%0) {factor=2} : f32[3] per_replica
  %2 = jax.sub(%w, %1) : f32[3] per_replica
  assign(%2) {variable=@w}
  %3 = reduce(%0) {reducer="sum", group_size=2} : f32[3] mirrored
  %w_steps = read() {variable=@w.steps} : i32[] mirrored
  %4, %5 = count_step(%w_steps) {every=2} : i32[] mirrored, i32[] mirrored
  assign(%4) {variable=@w.steps}
  cond(%5) {every=2}
    stay() {
      return
    }
    synchronize() {
      %w_1 = read() {variable=@w} : f32[3] per_replica
      %w_2 = all_reduce(%w_1) {reducer="mean", group_size=2} : f32[3] mirrored
      assign(%w_2) {variable=@w}
      return
    }
  return %3
}

# title: a slot is local, and is not averaged
# not executed: replicas that take steps of their own give other values
graph f on 2 replicas, stage logical
  variable @w: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true}
  variable @m: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] mirrored
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %g = all_reduce(%0) {reducer="mean", group_size=2} : f32[3] mirrored
  %m = read() {variable=@m} : f32[3] mirrored
  %1 = jax.add(%m, %g) : f32[3] mirrored
  assign(%1) {variable=@m}
  %2 = jax.sub(%w, %1) : f32[3] mirrored
  assign(%2) {variable=@w}
  return
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[3] per_replica {synchronization="on_write", aggregation="none", trainable=true, role="local"}
  variable @m: f32[3] per_replica {synchronization="on_write", aggregation="none", trainable=true, role="local"}
  variable @w.steps: i32[] mirrored {synchronization="on_write", aggregation="none", trainable=false, alone=true, role="steps", serves=("w",)}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] per_replica
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %m = read() {variable=@m} : f32[3] per_replica
  %1 = jax.add(%m, %0) : f32[3] per_replica
  assign(%1) {variable=@m}
  %2 = jax.sub(%w, %1) : f32[3] per_replica
  assign(%2) {variable=@w}
  %w_steps = read() {variable=@w.steps} : i32[] mirrored
  %3, %4 = count_step(%w_steps) {every=2} : i32[] mirrored, i32[] mirrored
  assign(%3) {variable=@w.steps}
  cond(%4) {every=2}
    stay() {
      return
    }
    synchronize() {
      %w_1 = read() {variable=@w} : f32[3] per_replica
      %w_2 = all_reduce(%w_1) {reducer="mean", group_size=2} : f32[3] mirrored
      assign(%w_2) {variable=@w}
      return
    }
  return
}

# title: a value that was one for all is averaged where it is returned
graph f on 2 replicas, stage logical
  variable @w: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] mirrored
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %g = reduce(%0) {reducer="mean", group_size=2} : f32[3] mirrored
  %1 = jax.sub(%w, %g) : f32[3] mirrored
  assign(%1) {variable=@w}
  return %g
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[3] per_replica {synchronization="on_write", aggregation="none", trainable=true, role="local"}
  variable @w.steps: i32[] mirrored {synchronization="on_write", aggregation="none", trainable=false, alone=true, role="steps", serves=("w",)}
(%x: f32[3] per_replica) {
  %w = read() {variable=@w} : f32[3] per_replica
  %0 = jax.mul(%x, %w) : f32[3] per_replica
  %1 = jax.sub(%w, %0) : f32[3] per_replica
  assign(%1) {variable=@w}
  %w_steps = read() {variable=@w.steps} : i32[] mirrored
  %2, %3 = count_step(%w_steps) {every=2} : i32[] mirrored, i32[] mirrored
  assign(%2) {variable=@w.steps}
  cond(%3) {every=2}
    stay() {
      return
    }
    synchronize() {
      %w_1 = read() {variable=@w} : f32[3] per_replica
      %w_2 = all_reduce(%w_1) {reducer="mean", group_size=2} : f32[3] mirrored
      assign(%w_2) {variable=@w}
      return
    }
  %4 = all_reduce(%0) {reducer="mean", group_size=2} : f32[3] mirrored
  return %4
}

# title: the steps are the turns of the loop
# not executed: every second turn synchronizes, not every turn
graph f on 2 replicas, stage logical
  variable @w: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%xs: f32[5,3] per_replica) {
  scan(%xs) {num_consts=0, num_carry=0, length=5, reverse=false, unroll=1}
    body(%x: f32[3] per_replica) {
      %w = read() {variable=@w} : f32[3] mirrored
      %0 = jax.mul(%x, %w) : f32[3] per_replica
      %g = all_reduce(%0) {reducer="mean", group_size=2} : f32[3] mirrored
      %1 = jax.sub(%w, %g) : f32[3] mirrored
      assign(%1) {variable=@w}
      return
    }
  return
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[3] per_replica {synchronization="on_write", aggregation="none", trainable=true, role="local"}
  variable @w.steps: i32[] mirrored {synchronization="on_write", aggregation="none", trainable=false, alone=true, role="steps", serves=("w",)}
(%xs: f32[5,3] per_replica) {
  scan(%xs) {length=5, reverse=false, unroll=1, num_consts=0, num_carry=0}
    body(%x: f32[3] per_replica) {
      %w = read() {variable=@w} : f32[3] per_replica
      %0 = jax.mul(%x, %w) : f32[3] per_replica
      %1 = jax.sub(%w, %0) : f32[3] per_replica
      assign(%1) {variable=@w}
      %w_steps = read() {variable=@w.steps} : i32[] mirrored
      %2, %3 = count_step(%w_steps) {every=2} : i32[] mirrored, i32[] mirrored
      assign(%2) {variable=@w.steps}
      cond(%3) {every=2}
        stay() {
          return
        }
        synchronize() {
          %w_1 = read() {variable=@w} : f32[3] per_replica
          %w_2 = all_reduce(%w_1) {reducer="mean", group_size=2} : f32[3] mirrored
          assign(%w_2) {variable=@w}
          return
        }
      return
    }
  return
}

# title: a function that takes no step reads the mean of the copies, and assigns all of them
graph f on 2 replicas, stage logical
  variable @w: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true, role="copies"}
() {
  %w = read() {variable=@w} : f32[3] mirrored
  %1 = jax.mul(%w, %w) : f32[3] mirrored
  assign(%1) {variable=@w}
  return %w
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[3] per_replica {synchronization="on_write", aggregation="none", trainable=true, role="local"}
  variable @w.mean: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=true, is_local=true}
() {
  %w = read() {variable=@w} : f32[3] per_replica
  %0 = all_reduce(%w) {reducer="mean", group_size=2} : f32[3] mirrored
  assign(%0) {variable=@w.mean}
  %w_1 = read() {variable=@w.mean} : f32[3] mirrored
  %1 = jax.mul(%w_1, %w_1) : f32[3] mirrored
  assign(%1) {variable=@w.mean}
  %w_mean = read() {variable=@w.mean} : f32[3] mirrored
  assign(%w_mean) {variable=@w}
  return %w_1
}
