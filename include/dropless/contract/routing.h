/* SPDX-License-Identifier: Apache-2.0
 * Routing: from router logits to K experts and routing weights for every token, and the two
 * router-side statistics (tokens per expert, expert-bias update). Clauses ROUTING-1 to 13 and 16.
 *
 *     dropless_route_args a = {sizeof a, DROPLESS_STRUCT_VERSION};
 *     a.settings = &settings;            E = 256, K = 8, sigmoid, 8 groups, 4 kept, factor 2.5
 *     a.logits = &logits;                [T, E]
 *     a.ids = &ids, a.weights = &weights, a.tokens_per_expert = &counts;
 *     implementation->route_forward(implementation->context, &call, &a);
 */
#ifndef DROPLESS_CONTRACT_ROUTING_H
#define DROPLESS_CONTRACT_ROUTING_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DROPLESS_SCORE_SOFTMAX = 0, DROPLESS_SCORE_SIGMOID = 1, DROPLESS_SCORE_SQRT_SOFTPLUS = 2 };
enum { DROPLESS_SOFTMAX_BEFORE_TOP_K = 0, DROPLESS_SOFTMAX_AFTER_TOP_K = 1 };
enum { DROPLESS_EPS_ADDED = 0, DROPLESS_EPS_MAXIMUM = 1 };
enum { DROPLESS_GROUP_SCORE_TOP_SUM = 0, DROPLESS_GROUP_SCORE_MAX = 1 };

/* Settings of the model, not choices of the implementation. */
typedef struct dropless_route_settings {
  uint32_t struct_size;
  uint32_t struct_version;
  int64_t num_experts;        /* E */
  int64_t top_k;              /* K */
  int32_t score_function;     /* ROUTING-1 */
  int32_t softmax_order;      /* ROUTING-6: softmax over E, or over the selected K */
  int32_t renormalize;        /* ROUTING-6: 1 divides by the sum of the selected, for K > 1 */
  int32_t renormalize_single; /* the same switch for K = 1 */
  int32_t eps_form;           /* w / (sum + eps) or w / max(sum, eps) */
  int32_t group_score;        /* ROUTING-4 */
  int64_t num_groups;         /* G; 0 and 1 mean no group limit */
  int64_t kept_groups;        /* groups in which experts may be selected; ignored when G <= 1 */
  double renormalize_eps;     /* 1e-20 unless the model says otherwise */
  double scaling_factor;      /* applied once, after renormalisation */
} dropless_route_settings;

/* Forward. Refuses (GENERAL-3): K > E, K < 1, E not divisible by G, K > E / G * kept groups, K not
 * divisible by kept groups where w = K / kept is used, softmax over the selected K together with
 * renormalisation, an expert bias or groups, given ids below -1, >= E or repeated in a token. */
typedef struct dropless_route_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_route_settings* settings;
  const dropless_tensor* logits;            /* [T,E] fp32 or bf16 */
  const dropless_tensor* expert_bias;       /* [E] fp32 or null */
  const dropless_tensor* token_mask;        /* [T] u8, 0 = masked, or null */
  const dropless_tensor* given_ids;         /* [T,K] i32 or i64 or null: ROUTING-13 */
  const dropless_tensor* expert_scale;      /* [E] fp32 or null */
  const dropless_tensor* ids;               /* out [T,K] i32 or i64 */
  const dropless_tensor* weights;           /* out [T,K] fp32 */
  const dropless_tensor* scores;            /* out [T,E] fp32 or null: unbiased, not renormalised */
  const dropless_tensor* tokens_per_expert; /* out [E] i64 */
} dropless_route_args;

/* Backward: derivative of ROUTING-1 to 6 with the selection held constant (ROUTING-12). */
typedef struct dropless_route_backward_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_route_settings* settings;
  const dropless_tensor* logits;         /* [T,E] fp32 or bf16 */
  const dropless_tensor* token_mask;     /* [T] u8 or null */
  const dropless_tensor* expert_scale;   /* [E] fp32 or null */
  const dropless_tensor* ids;            /* [T,K] i32 or i64, -1 allowed */
  const dropless_tensor* d_weights;      /* [T,K] fp32 */
  const dropless_tensor* d_logits;       /* out [T,E] fp32 */
  const dropless_tensor* d_expert_scale; /* out [E] fp32, when expert_scale is given */
} dropless_route_backward_args;

/* Expert-bias update (ROUTING-16): b_e = fl32(b_e + rate * sign(sum(n) - E * n_e)), in place. */
typedef struct dropless_bias_update_args {
  uint32_t struct_size;
  uint32_t struct_version;
  double rate;
  const dropless_tensor* counts;      /* [n,E] i64, one row per micro-batch or rank */
  const dropless_tensor* expert_bias; /* in and out [E] fp32 */
} dropless_bias_update_args;

#ifdef __cplusplus
}
#endif

#endif
