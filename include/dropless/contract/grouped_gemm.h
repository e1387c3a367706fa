/* SPDX-License-Identifier: Apache-2.0
 * Grouped GEMM over ragged groups of rows. Clauses GROUPED_GEMM-1 to 9. W is [E,O,I].
 *
 *   fprop  y[r]  = alpha * x[r] W_e^T + bias_e      x [N_max,I] -> y [N_max,O]
 *   dgrad  dx[r] = alpha * dy[r] W_e                dy [N_max,O] -> dx [N_max,I]
 *   wgrad  dW_e  = alpha * dy_e^T x_e + beta * C_e  -> [E,O,I]
 *
 * Zone of expert e: rows offsets[e] .. offsets[e+1], of which the first counts[e] are real.
 * MXFP8 operands: fprop x and W row-wise (blocks along I); dgrad dy row-wise (blocks along O) and W
 * column-wise (blocks along O); wgrad dy and x column-wise (blocks along the rows of a zone).
 * Scales of W, linear: [E,O,ceil(I/32)] row-wise, [E,ceil(O/32),I] column-wise; packed: one group
 * per expert, as in MXFP8-7. Codes always keep the shape of the plain tensor. Refuses shape
 * mismatches, falling offsets, offsets[E] > N_max, counts above their zone, and zones that break
 * the declared gemm_alignment.
 */
#ifndef DROPLESS_CONTRACT_GROUPED_GEMM_H
#define DROPLESS_CONTRACT_GROUPED_GEMM_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dropless_gemm_fprop_args {
  uint32_t struct_size;
  uint32_t struct_version;
  double alpha;
  const dropless_operand* x;      /* [N_max,I] */
  const dropless_operand* w;      /* [E,O,I] */
  const dropless_tensor* bias;    /* [E,O] fp32 or bf16, or null */
  const dropless_tensor* offsets; /* [E+1] i64 */
  const dropless_tensor* counts;  /* [E] i64 or null */
  const dropless_tensor* y;       /* out [N_max,O] fp32 or bf16 */
} dropless_gemm_fprop_args;

typedef struct dropless_gemm_dgrad_args {
  uint32_t struct_size;
  uint32_t struct_version;
  double alpha;
  const dropless_operand* dy;     /* [N_max,O] */
  const dropless_operand* w;      /* [E,O,I] */
  const dropless_tensor* offsets; /* [E+1] i64 */
  const dropless_tensor* counts;  /* [E] i64 or null */
  const dropless_tensor* dx;      /* out [N_max,I] fp32 or bf16 */
} dropless_gemm_dgrad_args;

typedef struct dropless_gemm_wgrad_args {
  uint32_t struct_size;
  uint32_t struct_version;
  double alpha;
  double beta;
  const dropless_operand* dy;     /* [N_max,O] */
  const dropless_operand* x;      /* [N_max,I] */
  const dropless_tensor* offsets; /* [E+1] i64 */
  const dropless_tensor* counts;  /* [E] i64 or null */
  const dropless_tensor* c;       /* [E,O,I] fp32 or bf16; null when beta is 0; may be dw itself */
  const dropless_tensor* dw;      /* out [E,O,I] fp32 or bf16 */
} dropless_gemm_wgrad_args;

#ifdef __cplusplus
}
#endif

#endif
