/* SPDX-License-Identifier: Apache-2.0
 * Permutation: rows sorted by (expert, token, slot), and back. Clauses PERMUTATION-1 to 8.
 * N_max below is the length of the buffers that the caller passes; rows beyond offsets[E] follow
 * the tail rule of the profile, except that source there is untouched or -1, never an id. row_map
 * is -1 for an id of -1 and for pairs cut by a row capacity. Zone alignment and the empty-expert
 * rule come from the profile.
 */
#ifndef DROPLESS_CONTRACT_PERMUTATION_H
#define DROPLESS_CONTRACT_PERMUTATION_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A source buffer that is too short is a value in memory (GENERAL-3), not a shape.
 * Refuses ids outside -1 .. E-1, duplicate ids in a token, a capacity that is not a multiple of the
 * alignment, and (without a capacity) a source buffer shorter than the rows needed. */
typedef struct dropless_permute_plan_args {
  uint32_t struct_size;
  uint32_t struct_version;
  int64_t num_experts;
  int64_t row_capacity;                     /* -1: none. Otherwise PERMUTATION-5 */
  const dropless_tensor* ids;               /* [T,K] i32 or i64, -1 = not routed */
  const dropless_tensor* tokens_per_expert; /* out [E] i64: real rows kept in each zone */
  const dropless_tensor* offsets;           /* out [E+1] i64 */
  const dropless_tensor* row_map;           /* out [T,K] i64, -1 none */
  const dropless_tensor* source;            /* out [N_max] i64, t * K + slot, -1 padding */
  const dropless_tensor* demand;            /* out [1] i64: offsets[E] without any capacity */
} dropless_permute_plan_args;

/* rows[row_map[t,j]] = x[t], byte for byte; padding rows, weights and scales become zero. */
typedef struct dropless_permute_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_tensor* offsets;     /* [E+1] i64 */
  const dropless_tensor* row_map;     /* [T,K] i64 */
  const dropless_tensor* source;      /* [N_max] i64 */
  const dropless_tensor* x;           /* [T,H] any dtype */
  const dropless_tensor* weights;     /* [T,K] fp32 or null */
  const dropless_tensor* scales;      /* [T,S] u8 or e8m0, or null */
  const dropless_tensor* rows;        /* out [N_max,H], dtype of x */
  const dropless_tensor* row_weights; /* out [N_max] fp32 or null */
  const dropless_tensor* row_scales;  /* out [N_max,S] or null */
} dropless_permute_args;

/* d_x[t] = sum over slots of d_rows[row_map[t,j]], unweighted (PERMUTATION-7); the gradient of
 * weights that travelled with the rows comes back by the same map. */
typedef struct dropless_permute_backward_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_tensor* row_map;       /* [T,K] i64 */
  const dropless_tensor* d_rows;        /* [N_max,H] fp32 or bf16 */
  const dropless_tensor* d_x;           /* out [T,H] fp32 or bf16 */
  const dropless_tensor* d_row_weights; /* [N_max] fp32 or null */
  const dropless_tensor* d_weights; /* out [T,K] fp32, 0 for id -1; with d_row_weights, or null */
} dropless_permute_backward_args;

/* y[t] = sum over slots of w[t,j] * rows[row_map[t,j]]; null weights: the unweighted sum. */
typedef struct dropless_unpermute_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_tensor* row_map; /* [T,K] i64 */
  const dropless_tensor* rows;    /* [N_max,H] fp32 or bf16 */
  const dropless_tensor* weights; /* [T,K] fp32 or null */
  const dropless_tensor* y;       /* out [T,H] fp32 or bf16 */
} dropless_unpermute_args;

/* d_rows[row] = w * d_y[t], d_weights[t,j] = dot(d_y[t], rows[row]); 0 for padding and for id -1.
 */
typedef struct dropless_unpermute_backward_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_tensor* offsets;   /* [E+1] i64 */
  const dropless_tensor* row_map;   /* [T,K] i64 */
  const dropless_tensor* source;    /* [N_max] i64 */
  const dropless_tensor* rows;      /* [N_max,H] fp32 or bf16; null when weights is null */
  const dropless_tensor* weights;   /* [T,K] fp32 or null */
  const dropless_tensor* d_y;       /* [T,H] fp32 or bf16 */
  const dropless_tensor* d_rows;    /* out [N_max,H] fp32 or bf16 */
  const dropless_tensor* d_weights; /* out [T,K] fp32, null when weights is null */
} dropless_unpermute_backward_args;

#ifdef __cplusplus
}
#endif

#endif
