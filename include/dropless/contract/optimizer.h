/* SPDX-License-Identifier: Apache-2.0
 * AdamW with decoupled weight decay (OPTIMIZER-1 onward), one flat parameter tensor a call:
 *   g' = clip * g;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2;  c1 = 1 - b1^t;  c2 = 1 - b2^t
 *   p = p - lr * ((m / c1) / (sqrt(v / c2) + eps) + weight_decay * p)
 */
#ifndef DROPLESS_CONTRACT_OPTIMIZER_H
#define DROPLESS_CONTRACT_OPTIMIZER_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DROPLESS_ROUND_NEAREST_EVEN = 0, DROPLESS_ROUND_STOCHASTIC = 1 };

typedef struct dropless_adamw_args {
  uint32_t struct_size;
  uint32_t struct_version;
  double learning_rate;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double gradient_scale;   /* clip factor, computed by the caller from the global norm; 1 = none */
  int64_t step;            /* t, 1 for the first step */
  uint64_t seed;           /* stochastic rounding: the same seed repeats the same bits */
  int32_t weight_rounding; /* of bf16 weights */
  int32_t reserved;
  const dropless_tensor* gradient;      /* [n] fp32 or bf16 */
  const dropless_tensor* first_moment;  /* in and out [n] fp32 or bf16 (stored to nearest even) */
  const dropless_tensor* second_moment; /* in and out [n] fp32 */
  const dropless_tensor* master; /* in and out [n] fp32, or null: the weight itself is updated */
  const dropless_tensor* weight; /* in and out [n] fp32 or bf16; with a master only out */
  const dropless_tensor* gradient_scale_tensor; /* [1] fp32, replaces gradient_scale; or null */
} dropless_adamw_args;

#ifdef __cplusplus
}
#endif

#endif
