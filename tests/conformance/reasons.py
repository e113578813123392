"""Why cases differ, where several do for one reason."""

from __future__ import annotations

OBJECTS = "values decide, not objects: what each replica contributes counts, a literal too"
ALONE_OR_ZERO = "a value that is not distributed is its own mean and has no sum, zero too"
INTEGERS = "the mean of integers is a float32, however many replicas, and never wraps"
NEVER_DIFFER = "copies of a mirrored variable never differ: a write that would make them is refused"
AS_MIRRORED = "CentralStorageStrategy does what MirroredStrategy does"
BROKEN = (
    "calls that are broken in TensorFlow work: TF1 iterators outside a scope or on CentralStorage"
)
TEXT = "the text of a repr is graphdist's own"
TRACED_ONCE = "replicas that look the same are traced once, others one after the other"
EVERYWHERE = "collectives work everywhere: in control flow, for every dtype, along any axis"
ON_ALL = "every strategy gives the same answer: leaf by leaf, and the same errors"
IN_AND_OUT = "a function gives the same answer as its code outside"
NO_SUCH_ARRAYS = "JAX has no ragged and no sparse arrays, and none of strings"
ONE_OBJECT = "a variable is one object and its copies are arrays, without names, handles or ref()"
