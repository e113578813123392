# title: what no output needs
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.floor(%x) : f32[4] per_replica
  %b = jax.abs(%x) : f32[4] per_replica
  %c = jax.sign(%a) : f32[4] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %b = jax.abs(%x) : f32[4] per_replica
  return per_replica %b
}

# title: a collective that nobody needs
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %b = jax.mul(%a, 2.0:f32) : f32[4] mirrored
  return per_replica %x
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  return per_replica %x
}

# title: one of several results is enough
graph f on 2 replicas, stage spmd
(%x: f32[12] per_replica) {
  %a, %b = unpack(%x) {shapes=((2, 3), (6,))} : f32[2,3] per_replica, f32[6] per_replica
  %c = jax.floor(%a) : f32[2,3] per_replica
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[12] per_replica) {
  %a, %b = unpack(%x) {shapes=((2, 3), (6,))} : f32[2,3] per_replica, f32[6] per_replica
  return per_replica %b
}

# title: assignments stay, and what they need
graph f on 2 replicas, stage logical
variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored) {
  %a = jax.floor(%x) : f32[4] mirrored
  %b = read() {variable=@w} : f32[4] mirrored
  assign(%a) {variable=@w}
  return %x
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored) {
  %a = jax.floor(%x) : f32[4] mirrored
  assign(%a) {variable=@w}
  return %x
}

# title: inside a loop, with what it stacks for nobody
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a, %b, %c = scan(%x, %x) {num_consts=0, num_carry=1, length=4, reverse=false} : f32[4] per_replica, f32[4] per_replica, f32[4,4] per_replica
    body(%c: f32[4] per_replica, %e: f32[] per_replica) {
      %s = jax.floor(%c) : f32[4] per_replica
      %t = jax.abs(%c) : f32[4] per_replica
      %u = jax.sign(%t) : f32[4] per_replica
      return %s, %e, %t
    }
  %d = jax.neg(%b) : f32[4] per_replica
  return per_replica %a, per_replica %d
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %0, %1 = scan(%x, %x) {length=4, reverse=false, num_consts=0, num_carry=1} : f32[4] per_replica, f32[4] per_replica
    body(%c: f32[4] per_replica, %e: f32[] per_replica) {
      %s = jax.floor(%c) : f32[4] per_replica
      return %s, %e
    }
  %d = jax.neg(%1) : f32[4] per_replica
  return per_replica %0, per_replica %d
}

# title: carries stay, used or not
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a, %b = scan(%x, %x) {num_consts=0, num_carry=2, length=4, reverse=false} : f32[4] per_replica, f32[4] per_replica
    body(%c: f32[4] per_replica, %e: f32[4] per_replica) {
      %s = jax.floor(%c) : f32[4] per_replica
      %t = jax.abs(%e) : f32[4] per_replica
      return %s, %t
    }
  return per_replica %a
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a, %b = scan(%x, %x) {length=4, reverse=false, num_consts=0, num_carry=2} : f32[4] per_replica, f32[4] per_replica
    body(%c: f32[4] per_replica, %e: f32[4] per_replica) {
      %s = jax.floor(%c) : f32[4] per_replica
      %t = jax.abs(%e) : f32[4] per_replica
      return %s, %t
    }
  return per_replica %a
}

# title: results of a cond
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %i: i32[] mirrored) {
  %a, %b = cond(%i, %x) : f32[4] per_replica, f32[4] per_replica
    branch_0(%y: f32[4] per_replica) {
      %s = jax.floor(%y) : f32[4] per_replica
      return %s, %y
    }
    branch_1(%y: f32[4] per_replica) {
      %c = jax.abs(%y) : f32[4] per_replica
      return %c, %c
    }
  return per_replica %b
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %i: i32[] mirrored) {
  %0 = cond(%i, %x) : f32[4] per_replica
    branch_0(%y: f32[4] per_replica) {
      return %y
    }
    branch_1(%y_1: f32[4] per_replica) {
      %c = jax.abs(%y_1) : f32[4] per_replica
      return %c
    }
  return per_replica %0
}

# title: a branch that assigns stays, without the result that nobody needs
graph f on 2 replicas, stage logical
variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored, %i: i32[] mirrored) {
  %a = cond(%i, %x) : f32[4] mirrored
    branch_0(%y: f32[4] mirrored) {
      return %y
    }
    branch_1(%y: f32[4] mirrored) {
      %s = jax.floor(%y) : f32[4] mirrored
      assign(%s) {variable=@w}
      return %s
    }
  return %x
}
-->
graph f on 2 replicas, stage logical
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, assigned=true}
(%x: f32[4] mirrored, %i: i32[] mirrored) {
  cond(%i, %x)
    branch_0(%y: f32[4] mirrored) {
      return
    }
    branch_1(%y_1: f32[4] mirrored) {
      %s = jax.floor(%y_1) : f32[4] mirrored
      assign(%s) {variable=@w}
      return
    }
  return %x
}

# title: inside a while
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[] per_replica) {
  %a, %b = while(%n, %x) {num_cond_consts=0, num_body_consts=0} : i32[] per_replica, f32[4] per_replica
    condition(%m: i32[] per_replica, %y: f32[4] per_replica) {
      %u = jax.floor(%y) : f32[4] per_replica
      %p = jax.lt(%m, 5:i32) : bool[] per_replica
      return %p
    }
    body(%m: i32[] per_replica, %y: f32[4] per_replica) {
      %u = jax.floor(%y) : f32[4] per_replica
      %k = jax.add(%m, 1:i32) : i32[] per_replica
      return %k, %y
    }
  return per_replica %a
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %n: i32[] per_replica) {
  %a, %b = while(%n, %x) {num_cond_consts=0, num_body_consts=0} : i32[] per_replica, f32[4] per_replica
    condition(%m: i32[] per_replica, %y: f32[4] per_replica) {
      %p = jax.lt(%m, 5:i32) : bool[] per_replica
      return %p
    }
    body(%m_1: i32[] per_replica, %y_1: f32[4] per_replica) {
      %k = jax.add(%m_1, 1:i32) : i32[] per_replica
      return %k, %y_1
    }
  return per_replica %a
}

# title: nothing to do
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.floor(%x) : f32[4] per_replica
  return per_replica %a
}
-->
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica) {
  %a = jax.floor(%x) : f32[4] per_replica
  return per_replica %a
}
