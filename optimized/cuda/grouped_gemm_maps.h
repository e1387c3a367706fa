// SPDX-License-Identifier: Apache-2.0
// Tensor maps (TMA descriptors) of operands of a grouped product: boxes of 64 x 64 bf16.
#pragma once

#include <cuda.h>

#include "optimized/cuda/grouped_gemm_product.h"

namespace dropless::cuda {

// True when TMA can read the operand: bf16, one axis dense, 16-byte aligned strides and address.
// a must be dense along k (fprop, dgrad) or along m (wgrad), b in wgrad along n.
[[nodiscard]] bool can_map(const GroupedProduct& product, const GemmOperand& operand);

// Map over the whole operand; `outer` is its extent in m or n. What lies outside reads as zero.
// Throws Refusal.
[[nodiscard]] CUtensorMap map_operand(const GroupedProduct& product, const GemmOperand& operand,
                                      Index outer);

}  // namespace dropless::cuda
