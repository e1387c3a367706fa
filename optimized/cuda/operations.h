// SPDX-License-Identifier: Apache-2.0
// Every operation of the table, with its arguments already copied (fields that the caller did not
// know are zero). They throw Refusal before anything is enqueued, or enqueue their work on
// call.stream() and return: none waits for the device, none reads device memory from the host.
#pragma once

#include <dropless/contract.h>

#include "optimized/cuda/call.h"

namespace dropless::cuda {

void route_forward(Call& call, const dropless_route_args& args);
void route_backward(Call& call, const dropless_route_backward_args& args);
void balance_loss_forward(Call& call, const dropless_balance_loss_args& args);
void balance_loss_backward(Call& call, const dropless_balance_loss_args& args);
void z_loss_forward(Call& call, const dropless_z_loss_args& args);
void z_loss_backward(Call& call, const dropless_z_loss_args& args);
void bias_update(Call& call, const dropless_bias_update_args& args);
void permute_plan(Call& call, const dropless_permute_plan_args& args);
void permute_forward(Call& call, const dropless_permute_args& args);
void permute_backward(Call& call, const dropless_permute_backward_args& args);
void unpermute_forward(Call& call, const dropless_unpermute_args& args);
void unpermute_backward(Call& call, const dropless_unpermute_backward_args& args);
void quantize(Call& call, const dropless_quantize_args& args);
void dequantize(Call& call, const dropless_dequantize_args& args);
void gemm_fprop(Call& call, const dropless_gemm_fprop_args& args);
void gemm_dgrad(Call& call, const dropless_gemm_dgrad_args& args);
void gemm_wgrad(Call& call, const dropless_gemm_wgrad_args& args);
void activation_forward(Call& call, const dropless_activation_args& args);
// Rows quantised by whoever made them: E4M3 codes [N,I] without gaps and row-wise linear scales
// [N, ceil(I / 32)] without gaps, the same bits as quantize() makes of the stored rows.
struct QuantizedRows {
  dropless_tensor codes, scales;
};
// activation_forward that quantises what it stores: h is not read a second time.
void activation_quantized(Call& call, const dropless_activation_args& args,
                          const QuantizedRows& quantized);
void activation_backward(Call& call, const dropless_activation_backward_args& args);
void cross_entropy_forward(Call& call, const dropless_cross_entropy_args& args);
void cross_entropy_backward(Call& call, const dropless_cross_entropy_args& args);
void adamw(Call& call, const dropless_adamw_args& args);
// The forward call hands out `saved`, the backward or the release call takes it back.
void layer_forward(Call& call, dropless_layer_args& args);
void layer_backward(Call& call, const dropless_layer_backward_args& args);
void layer_release(Call& call, dropless_layer_args& args);

}  // namespace dropless::cuda
