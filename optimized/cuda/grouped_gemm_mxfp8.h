// SPDX-License-Identifier: Apache-2.0
// MXFP8 operands of grouped products on GPUs whose tensor cores know no block scales: codes times
// scales as bf16, which is exact for nearly all of them, and a flag for every group that has values
// which bf16 cannot hold (MXFP8-5).
#pragma once

#include "optimized/cuda/grouped_gemm_product.h"

namespace dropless::cuda {

// Fills scales.starts and scales.blocks (scratch memory of the call) of an operand with extent
// `outer`; refuses on the device when fewer than the needed scales were given. `given`: bytes when
// packed, otherwise rows of column-wise scales (other linear shapes are checked by the host).
void plan_scales(Call& call, const GroupedProduct& product, GemmOperand& operand, Index outer,
                 Index given);

// The operand as bf16 in scratch memory of the call, rows padded to 16 bytes. flags[g] becomes 1
// where group g has an element that bf16 does not hold exactly, flags[E] where any group has.
GemmOperand upcast(Call& call, const GroupedProduct& product, const GemmOperand& operand,
                   Index outer, int* flags);

}  // namespace dropless::cuda
