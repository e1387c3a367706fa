// SPDX-License-Identifier: Apache-2.0
// The operations of the contract that the reference offers, one translation unit per stage
// (contract_<stage>.cpp). Each checks everything first, then computes, then writes: a call that
// throws has written nothing (GENERAL-3).
#pragma once

#include <dropless/contract.h>

namespace dropless::reference::contract {

void route_forward(const dropless_profile& profile, dropless_route_args* args);
void route_backward(const dropless_profile& profile, dropless_route_backward_args* args);
void bias_update(const dropless_profile& profile, dropless_bias_update_args* args);

void balance_loss_forward(const dropless_profile& profile, dropless_balance_loss_args* args);
void balance_loss_backward(const dropless_profile& profile, dropless_balance_loss_args* args);
void z_loss_forward(const dropless_profile& profile, dropless_z_loss_args* args);
void z_loss_backward(const dropless_profile& profile, dropless_z_loss_args* args);
void cross_entropy_forward(const dropless_profile& profile, dropless_cross_entropy_args* args);
void cross_entropy_backward(const dropless_profile& profile, dropless_cross_entropy_args* args);

void permute_plan(const dropless_profile& profile, dropless_permute_plan_args* args);
void permute_forward(const dropless_profile& profile, dropless_permute_args* args);
void permute_backward(const dropless_profile& profile, dropless_permute_backward_args* args);
void unpermute_forward(const dropless_profile& profile, dropless_unpermute_args* args);
void unpermute_backward(const dropless_profile& profile, dropless_unpermute_backward_args* args);

void quantize(const dropless_profile& profile, dropless_quantize_args* args);
void dequantize(const dropless_profile& profile, dropless_dequantize_args* args);

void gemm_fprop(const dropless_profile& profile, dropless_gemm_fprop_args* args);
void gemm_dgrad(const dropless_profile& profile, dropless_gemm_dgrad_args* args);
void gemm_wgrad(const dropless_profile& profile, dropless_gemm_wgrad_args* args);

void activation_forward(const dropless_profile& profile, dropless_activation_args* args);
void activation_backward(const dropless_profile& profile, dropless_activation_backward_args* args);

void adamw(const dropless_profile& profile, dropless_adamw_args* args);

void layer_forward(const dropless_profile& profile, dropless_layer_args* args);
void layer_backward(const dropless_profile& profile, dropless_layer_backward_args* args);
void layer_release(const dropless_profile& profile, dropless_layer_args* args);

// Collective calls of ranks that are threads of one process.
void exchange_capacity(const dropless_profile& profile, dropless_exchange_capacity_args* args);
void exchange_open(const dropless_profile& profile, dropless_exchange_open_args* args);
void exchange_plan(const dropless_profile& profile, dropless_exchange_plan_args* args);
void exchange_dispatch(const dropless_profile& profile, dropless_exchange_dispatch_args* args);
void exchange_combine(const dropless_profile& profile, dropless_exchange_combine_args* args);
void exchange_dispatch_backward(const dropless_profile& profile,
                                dropless_exchange_dispatch_backward_args* args);
void exchange_combine_backward(const dropless_profile& profile,
                               dropless_exchange_combine_backward_args* args);
void exchange_close(const dropless_profile& profile, dropless_exchange_close_args* args);

// Everything has happened when a call returns: nothing to wait for, no deferred status.
void synchronize(const dropless_profile& profile, dropless_synchronize_args* args);

}  // namespace dropless::reference::contract
