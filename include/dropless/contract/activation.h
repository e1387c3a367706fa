/* SPDX-License-Identifier: Apache-2.0
 * Activation between the two expert GEMMs. Clauses ACTIVATION-1 to 5.
 * The input has 2I columns (gate and up) for gated kinds, I columns for relu2.
 */
#ifndef DROPLESS_CONTRACT_ACTIVATION_H
#define DROPLESS_CONTRACT_ACTIVATION_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DROPLESS_SWIGLU = 0,
  DROPLESS_SWIGLU_CLAMPED = 1,
  DROPLESS_GEGLU_TANH = 2,
  DROPLESS_RELU2 = 3
};
enum { DROPLESS_GATE_UP_CONCATENATED = 0, DROPLESS_GATE_UP_INTERLEAVED = 1 };

typedef struct dropless_activation_settings {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t kind;
  int32_t gate_up_layout;
  double limit;  /* swiglu_clamped only */
  double alpha;  /* swiglu_clamped only */
  double offset; /* swiglu_clamped only */
} dropless_activation_settings;

/* h = act(gate, up), times the row weight when weights are given (early placement). With offsets,
 * only real rows are computed, padding rows are written as zero and the tail rule holds beyond
 * offsets[E]; without, all rows are real. */
typedef struct dropless_activation_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_activation_settings* settings;
  const dropless_tensor* x;           /* [N_max,2I] or [N_max,I], fp32 or bf16 */
  const dropless_tensor* row_weights; /* [N_max] fp32 or null */
  const dropless_tensor* offsets;     /* [E+1] i64 or null */
  const dropless_tensor* counts;      /* [E] i64 or null */
  const dropless_tensor* h;           /* out [N_max,I] fp32 or bf16 */
} dropless_activation_args;

/* d_x and, with weights, d_w = dot(dh, unrounded unweighted h) (ACTIVATION-5). */
typedef struct dropless_activation_backward_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_activation_settings* settings;
  const dropless_tensor* x;             /* [N_max,2I] or [N_max,I], fp32 or bf16 */
  const dropless_tensor* row_weights;   /* [N_max] fp32 or null */
  const dropless_tensor* offsets;       /* [E+1] i64 or null */
  const dropless_tensor* counts;        /* [E] i64 or null */
  const dropless_tensor* dh;            /* [N_max,I] fp32 or bf16 */
  const dropless_tensor* d_x;           /* out, shape of x, fp32 or bf16 */
  const dropless_tensor* d_row_weights; /* out [N_max] fp32, null when row_weights is null */
} dropless_activation_backward_args;

#ifdef __cplusplus
}
#endif

#endif
