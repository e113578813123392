"""Operations of convolutions, against a count of the products that are not of padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdist.runtime.module.instruction_cost import ModuleCost
from graphdist.runtime.module.instructions import CompiledModule

CONVOLUTION = """ENTRY %main (x: f32[2,{inputs},3]) -> f32[2,{outputs},5] {{
  %x = f32[2,{inputs},3]{{2,1,0}} parameter(0)
  %w = f32[{taps},3,5]{{2,1,0}} parameter(1)
  ROOT %y = f32[2,{outputs},5]{{2,1,0}} convolution(%x, %w),
    window={{{window}}}, dim_labels=b0f_0io->b0f
}}"""


def counted(inputs: int, taps: int, outputs: int, window: str) -> int:
    text = CONVOLUTION.format(inputs=inputs, taps=taps, outputs=outputs, window=window)
    module = CompiledModule(text)
    return ModuleCost(module).products(module["main"][-1])[1]


@given(
    *(st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    *(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4)),
)
def test_products_with_padding_and_between_inputs_do_not_count(
    inputs: int, taps: int, stride: int, spread: int, apart: int, before: int, after: int
) -> None:
    padded = (inputs - 1) * spread + 1 + before + after
    reach = (taps - 1) * apart + 1
    if padded < reach:
        return
    convolved = jax.lax.conv_general_dilated(
        jnp.ones((1, 1, inputs)), jnp.ones((1, 1, taps)), (stride,), [(before, after)],
        lhs_dilation=(spread,), rhs_dilation=(apart,),
    )  # fmt: skip
    window = (
        f"size={taps} stride={stride} pad={before}_{after} lhs_dilate={spread} rhs_dilate={apart}"
    )
    outputs = convolved.shape[2]
    # Ones convolved with ones count, for each output, the taps that meet an input.
    expected = 2 * 2 * 3 * 5 * int(np.asarray(convolved).sum())
    assert counted(inputs, taps, outputs, window) == expected


@pytest.mark.parametrize("heads", [1, 16])
def test_a_product_of_batches_of_matrices(heads: int) -> None:
    module = CompiledModule(f"""ENTRY %main (x: bf16[64,32,1]) -> bf16[64,{heads},128] {{
      %x = bf16[64,32,1]{{1,0,2}} parameter(0)
      %w = bf16[{heads},128,32]{{2,1,0}} parameter(1)
      ROOT %y = bf16[64,{heads},128]{{2,0,1}} convolution(%x, %w),
        window={{size={heads} pad={heads - 1}_{heads - 1} rhs_reversal=1}}, dim_labels=bf0_0oi->b0f
    }}""")
    assert ModuleCost(module).products(module["main"][-1]) == ("bf16", 2 * 64 * 32 * heads * 128)
