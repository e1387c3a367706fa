/* SPDX-License-Identifier: Apache-2.0
 * Losses: balance loss (ROUTING-14), router z-loss (ROUTING-15), cross-entropy (LOSSES-1).
 * Each returns a scalar; each backward takes the cotangent of that scalar.
 */
#ifndef DROPLESS_CONTRACT_LOSSES_H
#define DROPLESS_CONTRACT_LOSSES_H

#include "dropless/contract/routing.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DROPLESS_SCOPE_MICRO_BATCH = 0, DROPLESS_SCOPE_SEQUENCE = 1, DROPLESS_SCOPE_GLOBAL = 2 };

/* loss = coeff * c * E/K * sum_e f_e P_e. Scope global: accumulated_counts and accumulated_tokens
 * are the sums over the earlier micro-batches; this one is added to them, in place, by the forward
 * call. The backward call takes the sums after that addition. */
typedef struct dropless_balance_loss_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_route_settings* settings;
  double coeff;
  int32_t scope;
  int32_t reserved;
  const dropless_tensor* logits;              /* [T,E] fp32 or bf16 */
  const dropless_tensor* ids;                 /* [T,K] the real routing */
  const dropless_tensor* token_mask;          /* [T] u8 or null */
  const dropless_tensor* sequence_boundaries; /* [S+1] i64, scope sequence only */
  const dropless_tensor* accumulated_counts;  /* [E] i64, scope global only */
  const dropless_tensor* accumulated_tokens;  /* [1] i64, scope global only */
  const dropless_tensor* loss;                /* forward: out [1] fp32 */
  const dropless_tensor* d_loss;              /* backward: [1] fp32 */
  const dropless_tensor* d_logits;            /* backward: out [T,E] fp32 */
} dropless_balance_loss_args;

/* Scope: always the micro-batch. loss = coeff * mean over unmasked tokens of logsumexp(logits)^2,
 * natural logarithm. */
typedef struct dropless_z_loss_args {
  uint32_t struct_size;
  uint32_t struct_version;
  double coeff;
  const dropless_tensor* logits;     /* [T,E] fp32 or bf16 */
  const dropless_tensor* token_mask; /* [T] u8 or null */
  const dropless_tensor* loss;       /* forward: out [1] fp32 */
  const dropless_tensor* d_loss;     /* backward: [1] fp32 */
  const dropless_tensor* d_logits;   /* backward: out [T,E] fp32 */
} dropless_z_loss_args;

/* loss = mean over tokens with label >= 0 of logsumexp(z) - z[label]; 0 if there are none. Refuses
 * labels >= V. */
typedef struct dropless_cross_entropy_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_tensor* logits;   /* [T,V] fp32 or bf16 */
  const dropless_tensor* labels;   /* [T] i32 or i64, negative = ignored */
  const dropless_tensor* loss;     /* forward: out [1] fp32 */
  const dropless_tensor* d_loss;   /* backward: [1] fp32 */
  const dropless_tensor* d_logits; /* backward: out [T,V] fp32 */
} dropless_cross_entropy_args;

#ifdef __cplusplus
}
#endif

#endif
