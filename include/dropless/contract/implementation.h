/* SPDX-License-Identifier: Apache-2.0
 * What a shared library exports: one symbol that returns a table of operations.
 *
 *     static const dropless_implementation mine = {
 *         sizeof mine, DROPLESS_CONTRACT_VERSION, "my kernels", "1.2", "gcc -O3", DROPLESS_HOST, 0,
 *         &profile, .gemm_fprop = my_fprop};
 *     const dropless_implementation* dropless_get_implementation(uint32_t suite_version) {
 *       return &mine;
 *     }
 *
 * A null entry means "not offered" and is reported NOT_SUPPORTED. Calls may come from any thread,
 * one at a time. Every operation returns a status and, when it is not DROPLESS_OK, a message in the
 * call.
 */
#ifndef DROPLESS_CONTRACT_IMPLEMENTATION_H
#define DROPLESS_CONTRACT_IMPLEMENTATION_H

#include "dropless/contract/activation.h"
#include "dropless/contract/exchange.h"
#include "dropless/contract/grouped_gemm.h"
#include "dropless/contract/layer.h"
#include "dropless/contract/losses.h"
#include "dropless/contract/mxfp8.h"
#include "dropless/contract/optimizer.h"
#include "dropless/contract/permutation.h"
#include "dropless/contract/profile.h"
#include "dropless/contract/routing.h"
#include "dropless/contract/training.h"
#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The name of the exported symbol. */
#define DROPLESS_ENTRY_SYMBOL "dropless_get_implementation"

/* Waits for call->stream and returns the first deferred status since the last such call (values in
 * device memory, time-outs, overflow). Host "out" scalars are valid after it. */
typedef struct dropless_synchronize_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_exchange* exchange; /* or null */
} dropless_synchronize_args;

/* Operations in the order of the table, X(name, argument struct). Only ever appended to. Structs
 * that hold "out" scalars are written by the operation, so all of them are passed as pointers to
 * non-const. */
#define DROPLESS_OPERATIONS(X)                                            \
  X(route_forward, dropless_route_args)                                   \
  X(route_backward, dropless_route_backward_args)                         \
  X(balance_loss_forward, dropless_balance_loss_args)                     \
  X(balance_loss_backward, dropless_balance_loss_args)                    \
  X(z_loss_forward, dropless_z_loss_args)                                 \
  X(z_loss_backward, dropless_z_loss_args)                                \
  X(bias_update, dropless_bias_update_args)                               \
  X(permute_plan, dropless_permute_plan_args)                             \
  X(permute_forward, dropless_permute_args)                               \
  X(permute_backward, dropless_permute_backward_args)                     \
  X(unpermute_forward, dropless_unpermute_args)                           \
  X(unpermute_backward, dropless_unpermute_backward_args)                 \
  X(quantize, dropless_quantize_args)                                     \
  X(dequantize, dropless_dequantize_args)                                 \
  X(gemm_fprop, dropless_gemm_fprop_args)                                 \
  X(gemm_dgrad, dropless_gemm_dgrad_args)                                 \
  X(gemm_wgrad, dropless_gemm_wgrad_args)                                 \
  X(activation_forward, dropless_activation_args)                         \
  X(activation_backward, dropless_activation_backward_args)               \
  X(cross_entropy_forward, dropless_cross_entropy_args)                   \
  X(cross_entropy_backward, dropless_cross_entropy_args)                  \
  X(adamw, dropless_adamw_args)                                           \
  X(layer_forward, dropless_layer_args)                                   \
  X(layer_backward, dropless_layer_backward_args)                         \
  X(layer_release, dropless_layer_args)                                   \
  X(exchange_capacity, dropless_exchange_capacity_args)                   \
  X(exchange_open, dropless_exchange_open_args)                           \
  X(exchange_plan, dropless_exchange_plan_args)                           \
  X(exchange_dispatch, dropless_exchange_dispatch_args)                   \
  X(exchange_combine, dropless_exchange_combine_args)                     \
  X(exchange_dispatch_backward, dropless_exchange_dispatch_backward_args) \
  X(exchange_combine_backward, dropless_exchange_combine_backward_args)   \
  X(exchange_close, dropless_exchange_close_args)                         \
  X(model_open, dropless_model_open_args)                                 \
  X(model_step, dropless_model_step_args)                                 \
  X(model_evaluate, dropless_model_step_args)                             \
  X(model_parameter, dropless_model_parameter_args)                       \
  X(model_close, dropless_model_close_args)                               \
  X(synchronize, dropless_synchronize_args)

#define DROPLESS_DECLARE_FUNCTION(name, args)                                         \
  typedef dropless_status (*dropless_##name##_fn)(void* context, dropless_call* call, \
                                                  args* arguments);
DROPLESS_OPERATIONS(DROPLESS_DECLARE_FUNCTION)
#undef DROPLESS_DECLARE_FUNCTION

typedef struct dropless_implementation {
  uint32_t struct_size;      /* sizeof the struct its author compiled; may be shorter than ours */
  uint32_t contract_version; /* DROPLESS_CONTRACT_VERSION its author compiled against */
  const char* name;
  const char* version;
  const char* build; /* compiler, flags, libraries */
  dropless_memory_space memory_space;
  int32_t reserved;
  const dropless_profile* profile;
  void* context; /* handed to every operation */
#define DROPLESS_DECLARE_ENTRY(name, args) dropless_##name##_fn name;
  DROPLESS_OPERATIONS(DROPLESS_DECLARE_ENTRY)
#undef DROPLESS_DECLARE_ENTRY
} dropless_implementation;

typedef const dropless_implementation* (*dropless_get_implementation_fn)(uint32_t suite_version);

#if defined(_WIN32)
#define DROPLESS_EXPORT __declspec(dllexport)
#else
#define DROPLESS_EXPORT __attribute__((visibility("default")))
#endif

/* Defined by the shared library; null when it cannot serve this suite version. */
DROPLESS_EXPORT const dropless_implementation* dropless_get_implementation(uint32_t suite_version);

#ifdef __cplusplus
}
#endif

#endif
