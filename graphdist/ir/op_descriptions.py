"""One sentence about each operation of a graph, for the page of operations."""

from __future__ import annotations

DESCRIPTIONS = {
    "read": "The value of `variable`, of the type that the variable declares.",
    "assign": "Sets `variable` to the operand, which has its dtype and shape; no result.",
    "aggregate": "What a write in `context` puts into `variable`: per_replica if the variable is; "
    "mirrored in replica context if the variable has an aggregation; else as the operand.",
    "replica_id": "The replica's id, i32[] per_replica; mirrored over one replica.",
    "to_replicas": "One value handed to every replica: as the operand.",
    "reduce": "One value made of the replicas' by `reducer`: mirrored. Else as `all_reduce`.",
    "gather": "One value made of the replicas', joined along `axis`: mirrored. Else as "
    "`all_gather`.",
    "all_reduce": "The replicas' values reduced by `reducer` (sum, mean, max, min), held by each: "
    "mirrored. No mean of integers, no sum or mean of bools, nothing of random keys. With several "
    "groups, each group reduces its own values; they are the same in all groups.",
    "all_gather": "The replicas' values joined along `axis`, held by each: mirrored, that "
    "dimension `group_size` times as long. Not for scalars. With `stages`, it runs once over each "
    "number of replicas, the last number first. With several groups, each group joins its own "
    "shards.",
    "reduce_scatter": "The replicas' values reduced by `reducer`, of which each keeps a shard "
    "along `axis`: sharded(axis). The dimension divides by `group_size`. With `stages`, it runs "
    "once over each number of replicas. With several groups, all replicas are reduced, and each "
    "group holds all shards: sharded(axis) over member.",
    "collective_permute": "What another replica sends, by `pairs` of source and target, zeros "
    "where none does: per_replica; mirrored over one replica.",
    "all_to_all": "Of every replica's value, split into `group_size` parts along `split_axis`, "
    "part r goes to replica r, which joins the parts that it gets along `concat_axis`: "
    "per_replica; mirrored over one replica.",
    "own_slice": "The replica's own of `group_size` equal shards along `axis`: sharded(axis). Of a "
    "mirrored value whose dimension divides by `group_size`. With several groups, each group holds "
    "all shards: sharded(axis) over member.",
    "random_shard": "The replica's own of `group_size` equal shards along `axis` of the random "
    "bits that `random_bits` of JAX makes of a key, with `shape` and `bit_width`: sharded(axis). "
    "Groups as for `own_slice`.",
    "constant": "The array `value`: mirrored.",
    "select_replica": "The operand on the replica of id `replica`, zeros on the others: "
    "per_replica; mirrored over one replica.",
    "to_partial": "A term of each replica for a later reduction by `reducer`: of a per-replica "
    "value what the replica holds, of a mirrored one the value, for a sum on replica 0, zeros on "
    "the others: partial(reducer).",
    "scale": "The operand times the number `factor`: as the operand.",
    "pack": "Operands of one dtype, flattened and joined: one dimension, the join of the operands.",
    "unpack": "The pieces of a packed operand, of the `shapes` given: as the operand; with `axes` "
    "each piece is a slice along one of them. With `starts_at_run_time` XLA compiles one kernel "
    "for all slices of a size, on CPU.",
    "pack_slices": "Operands of one dtype, each cut in `group_size` slices along one of `axes`, "
    "flattened and joined, first all first slices: one dimension, the join of the operands.",
    "unpack_slices": "The full values, of the `shapes` given, that `pack_slices` makes the operand "
    "of: as the operand. `starts_at_run_time` as for `unpack`.",
    "concatenate": "The operands joined along `axis`: the join of the operands.",
    "take_step": "What step number i of a loop takes of a stack, its slice i along dimension 0; "
    "the first or the last for an i below or above: as the stack, one dimension less.",
    "take_part": "Part number i of `count` equal parts of a value along `axis`; the first or the "
    "last for an i below or above: as the value, per_replica if it is cut along `axis`.",
    "join_parts": "The slices of a stack along dimension 0, joined along `axis`, one of their own "
    "dimensions: as the stack, one dimension less, per_replica if they are cut along `axis`.",
    "count_step": "The count of steps after one more, from 0 to `every` - 1; and 1 if it is 0 "
    "again, else 0: i32[] both, as the operand.",
    "barrier": "The operands, once all are computed; the compiler merges no operation on them with "
    "one on the results: as the operands.",
    "reshape": "The operand with the shape `shape`, of as many elements: as the operand.",
    "scan": "`length` runs of a body on slices of some operands along dimension 0; the last carry, "
    "and the stacked ys: as the body returns them, a sharded dimension one further.",
    "while": "Runs of a body as long as a condition holds; the last carry: as the body takes it, "
    "per_replica if the condition differs between replicas.",
    "cond": "One of several branches by an i32[] index: the join of the branches, slices if some "
    "return slices and the others mirrored values; per_replica if the index differs between "
    "replicas. With `every`, only every so-many-th step takes the last branch.",
}
"""A sentence for each operation: what it is and, after the colon, the layout of its results."""
