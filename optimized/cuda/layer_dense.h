// SPDX-License-Identifier: Apache-2.0
// Linear maps of the layer that every row goes through (router, shared expert) as dense products by
// cuBLASLt: their number of rows is known to the host.
//
// What comes back is whether it was enqueued. False: no cuBLASLt, types or strides that it does not
// take, an extent of 0, a bias; the caller goes through the grouped GEMM. Under the MXFP8 recipe a
// product is taken only where the GPU has block scales (VEC32_UE8M0, on Blackwell, untested there):
// elsewhere the grouped GEMM widens the codes exactly.
#pragma once

#include "optimized/cuda/layer_linear.h"

namespace dropless::cuda {

// Arguments as those of Linear. x, y, dy and dx are the layer's own tensors or inputs.
[[nodiscard]] bool dense_forward(Call& call, const Linear& map, const dropless_tensor& x,
                                 const dropless_tensor& y);
[[nodiscard]] bool dense_backward_input(Call& call, const Linear& map, const dropless_tensor& dy,
                                        const dropless_tensor& dx);
// dw is the caller's: it is not touched when the call was refused on the device. Plain bf16
// operands are left to the grouped GEMM, which adds up in place without a copy of the sums.
[[nodiscard]] bool dense_backward_weight(Call& call, const Linear& map, const dropless_tensor& dy,
                                         const dropless_tensor& x, const dropless_tensor& dw);

}  // namespace dropless::cuda
