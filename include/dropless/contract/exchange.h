/* SPDX-License-Identifier: Apache-2.0
 * Exchange: dispatch and combine of rows between the ranks of an expert-parallel group. Clauses
 * EXCHANGE-1 to 15. All of these calls are collective: every rank makes the same calls on one
 * handle in the same order, also a rank that has no tokens. Layout, order, weighting and overflow
 * policy come from the profile. T is this rank's token count, R the ranks, L the local experts,
 * N_max the rows of the receive buffers of this rank.
 */
#ifndef DROPLESS_CONTRACT_EXCHANGE_H
#define DROPLESS_CONTRACT_EXCHANGE_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bootstrap: gathers `bytes` bytes of every rank into `received` [R * bytes], in rank order.
 * Returns 0 on success. The suite provides it; no launcher is assumed. */
typedef int32_t (*dropless_all_gather)(void* context, const void* sent, void* received,
                                       size_t bytes);

typedef struct dropless_exchange_settings {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t rank;
  int32_t ranks;
  dropless_all_gather all_gather;
  void* all_gather_context;
  int64_t num_experts;
  int64_t top_k;
  int64_t max_tokens;                  /* largest T of any rank and step */
  int64_t row_bytes;                   /* largest payload bytes of a row, scales not included */
  int64_t scale_bytes;                 /* scale bytes of a row, 0 for none */
  double ragged_buffer_factor;         /* -1 (worst case) or >= 1 (EXCHANGE-9) */
  double timeout_seconds;              /* EXCHANGE-14 */
  int64_t overflow_check_every;        /* steps; 0 means every step (EXCHANGE-11) */
  const dropless_tensor* node_of_rank; /* [R] i32 or null: one node */
  const dropless_tensor* placement;    /* [R, slots] i32 expert of each physical slot, or null */
} dropless_exchange_settings;

typedef struct dropless_exchange dropless_exchange; /* opaque, one per handle */

/* all_gather may be called inside open only; placement and node_of_rank are host memory and copied.
 */
typedef struct dropless_exchange_open_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_exchange_settings* settings;
  dropless_exchange* exchange; /* out */
} dropless_exchange_open_args;

/* Not collective after TIMEOUT or PEER_LOST. */
typedef struct dropless_exchange_close_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_exchange* exchange;
} dropless_exchange_close_args;

/* Rows that this rank's receive buffers need (EXCHANGE-9); allocates nothing. */
typedef struct dropless_exchange_capacity_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_exchange_settings* settings;
  int64_t capacity; /* out */
} dropless_exchange_capacity_args;

/* Takes the routing of one step. A new plan replaces the old one entirely (EXCHANGE-12).
 * Overflow, policy error: every rank returns DROPLESS_OVERFLOW, having written demand, checked,
 * first_overflow_step and unseen_steps only; on a step without a check it returns OK, and dispatch
 * and combine write nothing. Policy drop: counts and offsets after the drop, the true demand. */
typedef struct dropless_exchange_plan_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_exchange* exchange;
  const dropless_tensor* ids;                     /* [T,K] i32 or i64, -1 = no pair */
  const dropless_tensor* tokens_per_local_expert; /* out [L] i64 real pairs (EXCHANGE-4) */
  const dropless_tensor* offsets;                 /* out [L+1] i64 */
  const dropless_tensor* rows_per_source;         /* out [R] i64 */
  const dropless_tensor* global_counts;           /* out [E] i64 over all ranks, or null */
  const dropless_tensor* total_rows;              /* out [1] i64 rows used, padding included */
  const dropless_tensor* demand;                  /* out [1] i64, fullest rank (EXCHANGE-10) */
  const dropless_tensor* sent_bytes; /* out [1] i64 to other ranks (EXCHANGE-5), or null */
  const dropless_tensor*
      sent_node_bytes; /* out [1] i64 to other nodes, a token once a node; or null */
  int64_t step;        /* EXCHANGE-11 */
  int32_t last_step;   /* 1: the check is due whatever the period */
  int32_t checked;     /* out: this call looked for overflow */
  const dropless_tensor*
      first_overflow_step;              /* out [1] i64 since the last check, -1 none; or null */
  const dropless_tensor* unseen_steps;  /* out [1] i64, or null */
  const dropless_tensor* dropped_pairs; /* out [1] i64, policy drop; or null */
} dropless_exchange_plan_args;

typedef struct dropless_exchange_dispatch_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_exchange* exchange;
  const dropless_tensor* x;           /* [T,H] any dtype */
  const dropless_tensor* scales;      /* [T,S] u8 or e8m0, or null */
  const dropless_tensor* weights;     /* [T,K] fp32 or null */
  const dropless_tensor* rows;        /* out [N_max,H] */
  const dropless_tensor* row_scales;  /* out [N_max,S] or null */
  const dropless_tensor* row_weights; /* out flat [N_max,K] or expert-major [N_max] fp32 */
  const dropless_tensor* row_ids;     /* out flat [N_max,K] i32 local ids, -1 unused; or null */
  const dropless_tensor* row_source;  /* out unordered [N_max,2] i32 (rank, token); or null */
} dropless_exchange_dispatch_args;

typedef struct dropless_exchange_combine_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_exchange* exchange;
  const dropless_tensor* rows;        /* [N_max,H] fp32 or bf16 */
  const dropless_tensor* row_weights; /* expert-major, weighted profile: [N_max] fp32; else null */
  const dropless_tensor* y;           /* out [T,H] fp32 or bf16 */
} dropless_exchange_combine_args;

/* Backward of dispatch: a combine of row gradients, and the way home of the weight gradients. */
typedef struct dropless_exchange_dispatch_backward_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_exchange* exchange;
  const dropless_tensor* d_rows;        /* [N_max,H] */
  const dropless_tensor* d_row_weights; /* flat [N_max,K] or expert-major [N_max], or null */
  const dropless_tensor* d_x;           /* out [T,H] */
  const dropless_tensor* d_weights;     /* out [T,K], 0 for id -1; or null */
} dropless_exchange_dispatch_backward_args;

/* Backward of combine: a dispatch of d_y; weighted: d_row = w * d_y, d_w = dot(d_y, row). */
typedef struct dropless_exchange_combine_backward_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_exchange* exchange;
  const dropless_tensor* d_y;           /* [T,H] */
  const dropless_tensor* rows;          /* [N_max,H], weighted profile only */
  const dropless_tensor* row_weights;   /* [N_max], weighted profile only */
  const dropless_tensor* d_rows;        /* out [N_max,H] */
  const dropless_tensor* d_row_weights; /* out [N_max], weighted profile only */
} dropless_exchange_combine_backward_args;

#ifdef __cplusplus
}
#endif

#endif
