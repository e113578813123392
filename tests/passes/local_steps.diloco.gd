# title: every second step gives the mean difference to momentum, from the anchor
# not executed: it is another training; tests/properties/test_local_steps.py compares the numbers
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
  variable @w.anchor: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=false, alone=true, role="anchor", serves=("w",)}
  variable @w.slot_0: f32[3] mirrored {synchronization="on_write", aggregation="none", trainable=false, alone=true, role="slot 0", serves=("w",)}
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
      %w_anchor = read() {variable=@w.anchor} : f32[3] mirrored
      %w_slot_0 = read() {variable=@w.slot_0} : f32[3] mirrored
      %4 = jax.sub(%w_anchor, %w_1) : f32[3] per_replica
      %5 = all_reduce(%4) {reducer="mean", group_size=2} : f32[3] mirrored
      %6 = jax.mul(0.9:f32, %w_slot_0) {out_dtype=none} : f32[3] mirrored
      %7 = jax.add(%5, %6) : f32[3] mirrored
      %8 = jax.mul(-0.7:f32, %7) {out_dtype=none} : f32[3] mirrored
      %9 = jax.add(%w_anchor, %8) : f32[3] mirrored
      assign(%9) {variable=@w.anchor}
      assign(%7) {variable=@w.slot_0}
      assign(%9) {variable=@w}
      return
    }
  return
}
