/* SPDX-License-Identifier: Apache-2.0
 * The whole MoE layer, forward and backward (LAYER-1 onward):
 *   logits = x Wr^T (+ br) -> routing -> permutation or dispatch -> gate-up GEMM -> activation ->
 *   down GEMM -> weighted combine, + shared expert (not scaled by the routing factor).
 */
#ifndef DROPLESS_CONTRACT_LAYER_H
#define DROPLESS_CONTRACT_LAYER_H

#include "dropless/contract/activation.h"
#include "dropless/contract/exchange.h"
#include "dropless/contract/routing.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DROPLESS_WEIGHTS_LATE = 0, DROPLESS_WEIGHTS_EARLY = 1, DROPLESS_WEIGHTS_INPUT = 2 };
enum { DROPLESS_RECIPE_PLAIN = 0, DROPLESS_RECIPE_MXFP8 = 1 };

typedef struct dropless_layer_settings {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_route_settings* route;
  const dropless_activation_settings* activation;
  int32_t weight_placement;
  int32_t recipe;
  dropless_dtype gradient_format; /* MXFP8 recipe: e4m3 or e5m2 for gradients (LAYER-5) */
  int32_t recompute;              /* 1: the forward pass keeps only its inputs */
  int32_t offload;                /* 1: kept activations go to host memory */
  dropless_dtype logits_dtype;    /* fp32 or bf16: the router's output type, after its bias */
  int32_t reserved;
  int32_t overlap; /* 1: exchange and expert GEMMs may overlap */
} dropless_layer_settings;

/* Parameters or, in the backward pass, their gradients. Null where the model has none. */
typedef struct dropless_layer_parameters {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_tensor* router_weight;  /* [E,H] fp32 or bf16 */
  const dropless_tensor* router_bias;    /* [E] added to the logits */
  const dropless_tensor* expert_bias;    /* [E] selection only, no gradient */
  const dropless_tensor* expert_scale;   /* [E] fp32 */
  const dropless_tensor* gate_up;        /* [L,2I,H], or [L,I,H] for relu2 */
  const dropless_tensor* gate_up_bias;   /* [L,2I] */
  const dropless_tensor* down;           /* [L,H,I] */
  const dropless_tensor* down_bias;      /* [L,H] */
  const dropless_tensor* shared_gate_up; /* [2S,H] or [S,H] */
  const dropless_tensor* shared_down;    /* [H,S] */
  const dropless_tensor* shared_gate;    /* [1,H]: sigmoid gate of the layer input */
} dropless_layer_parameters;

typedef struct dropless_layer_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_layer_settings* settings;
  const dropless_layer_parameters* parameters;
  dropless_exchange* exchange;              /* null on one rank */
  const dropless_tensor* x;                 /* [T,H] fp32 or bf16 */
  const dropless_tensor* token_mask;        /* [T] u8 or null */
  const dropless_tensor* given_ids;         /* [T,K] or null */
  const dropless_tensor* y;                 /* out [T,H], dtype of x */
  const dropless_tensor* ids;               /* out [T,K] i32 or i64 */
  const dropless_tensor* tokens_per_expert; /* out [E] i64 */
  int32_t keep;                             /* 1: hand out `saved` for the backward pass */
  int32_t reserved;
  void* saved; /* out, released by layer_backward or layer_release */
} dropless_layer_args;

typedef struct dropless_layer_backward_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_layer_args* forward;         /* the same inputs as in the forward call */
  const dropless_tensor* d_y;                 /* [T,H] */
  const dropless_tensor* d_x;                 /* out [T,H] fp32 or bf16 */
  const dropless_layer_parameters* gradients; /* out; a null member is not wanted */
  const dropless_tensor* d_logits; /* [T,E] fp32, added to the routing's own gradient, or null */
} dropless_layer_backward_args;

#ifdef __cplusplus
}
#endif

#endif
