# title: bits of which each replica uses its shard
graph f on 2 replicas, stage spmd
(%key: key<fry>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(4, 3), bit_width=32} : u32[4,3] mirrored
  %mine = own_slice(%bits) {axis=0, group_size=2} : u32[2,3] sharded(0)
  %all = all_gather(%mine) {axis=0, group_size=2} : u32[4,3] mirrored
  return %all
}
-->
graph f on 2 replicas, stage spmd
(%key: key<fry>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(4, 3), bit_width=32} : u32[4,3] mirrored
  %mine = random_shard(%key) {axis=0, shape=(4, 3), bit_width=32, group_size=2} : u32[2,3] sharded(0)
  %all = all_gather(%mine) {axis=0, group_size=2} : u32[4,3] mirrored
  return %all
}

# title: bits that something uses unsharded too
graph f on 2 replicas, stage spmd
(%key: key<fry>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(4, 3), bit_width=32} : u32[4,3] mirrored
  %mine = own_slice(%bits) {axis=0, group_size=2} : u32[2,3] sharded(0)
  %all = all_gather(%mine) {axis=0, group_size=2} : u32[4,3] mirrored
  return %all, %bits
}
-->
graph f on 2 replicas, stage spmd
(%key: key<fry>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(4, 3), bit_width=32} : u32[4,3] mirrored
  %mine = own_slice(%bits) {axis=0, group_size=2} : u32[2,3] sharded(0)
  %all = all_gather(%mine) {axis=0, group_size=2} : u32[4,3] mirrored
  return %all, %bits
}

# title: groups of replicas, each of which holds all shards
graph f on 4 replicas, stage spmd
(%key: key<fry>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(3, 4), bit_width=16} : u16[3,4] mirrored
  %mine = own_slice(%bits) {axis=1, group_size=2, num_groups=2} : u16[3,2] sharded(1) over member
  %all = all_gather(%mine) {axis=1, group_size=2, num_groups=2} : u16[3,4] mirrored
  return %all
}
-->
graph f on 4 replicas, stage spmd
(%key: key<fry>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(3, 4), bit_width=16} : u16[3,4] mirrored
  %mine = random_shard(%key) {axis=1, shape=(3, 4), bit_width=16, group_size=2, num_groups=2} : u16[3,2] sharded(1) over member
  %all = all_gather(%mine) {axis=1, group_size=2, num_groups=2} : u16[3,4] mirrored
  return %all
}

# title: another generator
graph f on 2 replicas, stage spmd
(%key: key<rbg>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(4,), bit_width=32} : u32[4] mirrored
  %mine = own_slice(%bits) {axis=0, group_size=2} : u32[2] sharded(0)
  %all = all_gather(%mine) {axis=0, group_size=2} : u32[4] mirrored
  return %all
}
-->
graph f on 2 replicas, stage spmd
(%key: key<rbg>[] mirrored) {
  %bits = jax.random_bits(%key) {shape=(4,), bit_width=32} : u32[4] mirrored
  %mine = own_slice(%bits) {axis=0, group_size=2} : u32[2] sharded(0)
  %all = all_gather(%mine) {axis=0, group_size=2} : u32[4] mirrored
  return %all
}

# title: in a loop
graph f on 2 replicas, stage spmd
(%keys: key<fry>[3] mirrored) {
  %total = scan(0:u32, %keys) {num_consts=0, num_carry=1, length=3, reverse=false, unroll=1} : u32[] mirrored
    body(%sum: u32[] mirrored, %key: key<fry>[] mirrored) {
      %bits = jax.random_bits(%key) {shape=(4,), bit_width=32} : u32[4] mirrored
      %mine = own_slice(%bits) {axis=0, group_size=2} : u32[2] sharded(0)
      %all = all_gather(%mine) {axis=0, group_size=2} : u32[4] mirrored
      %most = jax.reduce_max(%all) {axes=(0,), out_sharding=none} : u32[] mirrored
      %next = jax.max(%sum, %most) : u32[] mirrored
      return %next
    }
  return %total
}
-->
graph f on 2 replicas, stage spmd
(%keys: key<fry>[3] mirrored) {
  %total = scan(0:u32, %keys) {length=3, reverse=false, unroll=1, num_consts=0, num_carry=1} : u32[] mirrored
    body(%sum: u32[] mirrored, %key: key<fry>[] mirrored) {
      %bits = jax.random_bits(%key) {shape=(4,), bit_width=32} : u32[4] mirrored
      %mine = random_shard(%key) {axis=0, shape=(4,), bit_width=32, group_size=2} : u32[2] sharded(0)
      %all = all_gather(%mine) {axis=0, group_size=2} : u32[4] mirrored
      %most = jax.reduce_max(%all) {axes=(0,), out_sharding=none} : u32[] mirrored
      %next = jax.max(%sum, %most) : u32[] mirrored
      return %next
    }
  return %total
}
