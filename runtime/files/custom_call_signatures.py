"""The table of signatures of custom calls: operands, results and settings, for JAX's operations.

A signature is written in one line:

    T[m,n] -> T[m,n]@0 R[min] i32[]; mode=S|N

Before the arrow are the operands, behind it the results. A value has an element type and, after the
batch dimensions that all values share, the sizes in brackets. `T` is the element type of the call,
`R` the real type of `T`, `C` its complex type, `X` any type. A letter is the same size in the full
signature, `min` is the smaller of m and n, `n-1` is one less than n. `()` instead of brackets is a
value without dimensions, also without batch dimensions. A result with `@0` is in the memory of
operand 0. After the semicolon are the settings, each with its choices: a capital letter is its
ASCII code, `n:i32` is size n, `1:i32` an integer, `true` a boolean; `k<=n` and `m<n` compare sizes.

The operations are those of LAPACK, cuSOLVER and the compiler for TPUs. A kernel reads and writes as
many elements as its first operand has, and would write beyond the end of a smaller result: so every
size is checked. `custom_call_check.py` compares calls with this table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

_LAPACK: dict[str, Sequence[str]] = {
    "potrf": ["T[n,n] -> T[n,n]@0 i32[]; uplo=L|U"],
    "getrf": ["T[m,n] -> T[m,n]@0 i32[min] i32[]"],
    "geqrf": ["T[m,n] -> T[m,n]@0 T[min]"],
    "orgqr": ["T[m,n] T[k] -> T[m,n]@0; k<=n n<=m"],
    "syevd": ["T[n,n] -> T[n,n]@0 R[n] i32[]; mode=N|V uplo=L|U"],
    "sytrd": ["T[n,n] -> T[n,n]@0 R[n] R[n-1] T[n-1] i32[]; uplo=L|U"],
    "gehrd": ["T[n,n] -> T[n,n]@0 T[n-1] i32[]; low=1:i32 high=n:i32"],
    "gesdd": [
        "T[m,n] -> T[m,n]@0 R[min] T[m,min] T[min,n] i32[]; mode=S|N",
        "T[m,n] -> T[m,n]@0 R[min] T[m,m] T[n,n] i32[]; mode=A|N",
    ],
    "trsm": [
        "T[m,m] T[m,n] -> T[m,n]@1; side=L uplo=L|U trans_x=N|T|C diag=N|U",
        "T[n,n] T[m,n] -> T[m,n]@1; side=R uplo=L|U trans_x=N|T|C diag=N|U",
    ],
    "gtsv": ["T[n] T[n] T[n] T[n,k] -> T[n]@0 T[n]@1 T[n]@2 T[n,k]@3 i32[]"],
}
_OF_REAL: dict[str, Sequence[str]] = {
    **_LAPACK,
    "geev": ["T[n,n] -> T[n] T[n] C[n,n] C[n,n] i32[]; compute_left=N|V compute_right=N|V"],
    "gees": ["T[n,n] -> T[n,n]@0 T[n,n] T[n] T[n] i32[] i32[]; mode=N|V sort=N"],
}
_OF_COMPLEX: dict[str, Sequence[str]] = {
    **_LAPACK,
    "geev": ["T[n,n] -> T[n] T[n,n] T[n,n] i32[]; compute_left=N|V compute_right=N|V"],
    "gees": ["T[n,n] -> T[n,n]@0 T[n,n] T[n] i32[] i32[]; mode=N|V sort=N"],
}
_NAMES_OF_COMPLEX = {"orgqr": "ungqr", "syevd": "heevd", "sytrd": "hetrd"}
_CUDA: dict[str, Sequence[str]] = {
    "cusolver_potrf_ffi": ["T[n,n] -> T[n,n]@0 i32[]; lower=true|false"],
    "cusolver_getrf_ffi": _LAPACK["getrf"],
    "cusolver_geqrf_ffi": _LAPACK["geqrf"],
    "cusolver_orgqr_ffi": _LAPACK["orgqr"],
    "cusolver_syevd_ffi": [
        "T[n,n] -> T[n,n]@0 R[n] i32[]; lower=true|false algorithm=0:ui8|1:ui8|2:ui8"
    ],
    "cusolver_sytrd_ffi": ["T[n,n] -> T[n,n]@0 R[n] R[n-1] T[n-1] i32[]; lower=true|false"],
    "cusolver_gesvdj_ffi": [
        "T[m,n] -> T[m,n]@0 R[min] T[m,m] T[n,n] i32[]; full_matrices=true compute_uv=true|false",
        "T[m,n] -> T[m,n]@0 R[min] T[m,min] T[n,min] i32[]; full_matrices=false "
        "compute_uv=true|false",
    ],
    "cusolver_gesvd_ffi": [
        "T[m,n] -> T[m,n]@0 R[min] T[m,m] T[n,n] i32[]; full_matrices=true compute_uv=true "
        "transposed=false n<=m",
        "T[m,n] -> T[m,n]@0 R[min] T[m,min] T[min,n] i32[]; full_matrices=false compute_uv=true "
        "transposed=false n<=m",
        "T[m,n] -> T[m,n]@0 R[min] T() T() i32[]; full_matrices=true|false compute_uv=false "
        "transposed=false n<=m",
    ],
    "cusparse_gtsv2_ffi": ["T[n] T[n] T[n] T[n,k] -> T[n,k]@3"],
}
_CUDA_ROWS: dict[str, Sequence[str]] = {
    "cusolver_gesvd_ffi": [
        "T[m,n] -> T[m,n]@0 R[min] T[n,n] T[m,m] i32[]; full_matrices=true compute_uv=true "
        "transposed=true m<n",
        "T[m,n] -> T[m,n]@0 R[min] T[min,n] T[m,min] i32[]; full_matrices=false compute_uv=true "
        "transposed=true m<n",
        "T[m,n] -> T[m,n]@0 R[min] T() T() i32[]; full_matrices=true|false compute_uv=false "
        "transposed=true m<n",
    ],
    "cu_lu_pivots_to_permutation": ["i32[k] -> i32[m]; k<=m"],
    "cu_threefry2x32_ffi": ["ui32[] ui32[] ui32[] ui32[] -> ui32[] ui32[]"],
}
_COMPILER: dict[str, Sequence[str]] = {
    "Eigh": ["T[n,n] -> T[n,n] R[n]"],
    "Qr": ["T[m,n] -> T[m,n] T[min]"],
    "ProductOfElementaryHouseholderReflectors": ["T[m,n] T[k] -> T[m,n]; k<=n n<=m"],
    "LuDecomposition": ["T[m,n] -> T[m,n] i32[min] i32[m]"],
    "AllocateBuffer": ["-> X[]"],
    "annotate_device_placement": ["X[] -> X[]"],
    "Sharding": ["X[] -> X[]"],
}


@dataclass(frozen=True, slots=True)
class Signature:
    """One form of a custom call.

    `elements` are the types that `T` may be. `layout` is the order of matrices in a kernel's calls,
    "columns" or "rows"; it is "" for calls of the compiler, which state no layout.
    """

    text: str
    elements: Sequence[str]
    layout: str


_FLOATS = ("f32", "f64", "complex<f32>", "complex<f64>")


def _signatures() -> dict[str, list[Signature]]:
    signatures: dict[str, list[Signature]] = defaultdict(list)
    for letter, element in zip("sdcz", _FLOATS, strict=True):
        for routine, texts in (_OF_REAL if letter in "sd" else _OF_COMPLEX).items():
            name = routine if letter in "sd" else _NAMES_OF_COMPLEX.get(routine, routine)
            forms = [Signature(text, [element], "columns") for text in texts]
            signatures[f"lapack_{letter}{name}_ffi"] = forms
    for table, layout in ((_CUDA, "columns"), (_CUDA_ROWS, "rows"), (_COMPILER, "")):
        for target, texts in table.items():
            signatures[target] += [Signature(text, _FLOATS, layout) for text in texts]
    return dict(signatures)


SIGNATURES = _signatures()
"""The forms of each target. `ApproxTopK` and the two targets of shard_map are checked elsewhere."""
