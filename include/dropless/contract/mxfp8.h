/* SPDX-License-Identifier: Apache-2.0
 * MXFP8 block scaling: blocks of 32 consecutive elements share one E8M0 scale. Clauses MXFP8-1
 * to 9. The scale rule and the NaN / Inf policy come from the profile.
 *
 * A matrix has `rows` x `columns` elements and optional groups of rows (the zones of the experts).
 * Without offsets the whole matrix is one group. Row-wise blocks run along the columns and know no
 * groups; column-wise blocks run along the rows and start anew at each group's first row.
 *
 *   linear row-wise scales     [rows, ceil(columns/32)]
 *   linear column-wise scales  [sum over groups of ceil(zone/32), columns]
 *                              (host bound: floor(rows/32) + G rows of scales)
 *   packed                     rank 1, MXFP8-7; row-wise scales are packed group by
 *                              group as well; a matrix without offsets is one group
 * With square_tiles, tiles start at a group's first row in both directions.
 */
#ifndef DROPLESS_CONTRACT_MXFP8_H
#define DROPLESS_CONTRACT_MXFP8_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DROPLESS_BLOCKS_ROW_WISE = 0, DROPLESS_BLOCKS_COLUMN_WISE = 1 };

#define DROPLESS_BLOCK_SIZE 32

/* Refuses falling offsets, offsets beyond the buffer, counts above their zone, and outputs whose
 * shape or dtype does not fit. Rows beyond the counts are coded as zero with scale byte 0; rows
 * beyond offsets[G] stay untouched. Either direction may be left out (null codes and scales). */
typedef struct dropless_quantize_args {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t scale_layout;                 /* of both directions */
  int32_t square_tiles;                 /* 1: amax over 32 x 32 tiles (MXFP8-6) */
  const dropless_tensor* x;             /* [rows,columns] fp32 or bf16 */
  const dropless_tensor* offsets;       /* [G+1] i64 or null */
  const dropless_tensor* counts;        /* [G] i64 real rows or null (= zone sizes) */
  const dropless_tensor* row_codes;     /* out [rows,columns] e4m3 or e5m2, or null */
  const dropless_tensor* row_scales;    /* out e8m0 */
  const dropless_tensor* column_codes;  /* out [rows,columns] e4m3 or e5m2, or null */
  const dropless_tensor* column_scales; /* out e8m0 */
} dropless_quantize_args;

/* y = code * 2^(byte - 127), rounded once to fp32, then to bf16 when y is bf16 (MXFP8-5). Rows
 * beyond the counts give zero; rows beyond offsets[G] follow the tail rule. */
typedef struct dropless_dequantize_args {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t direction;              /* DROPLESS_BLOCKS_ROW_WISE or DROPLESS_BLOCKS_COLUMN_WISE */
  int32_t scale_layout;           /* DROPLESS_SCALES_LINEAR or DROPLESS_SCALES_PACKED */
  const dropless_tensor* codes;   /* [rows,columns] e4m3 or e5m2 */
  const dropless_tensor* scales;  /* e8m0 */
  const dropless_tensor* offsets; /* [G+1] i64 or null */
  const dropless_tensor* counts;  /* [G] i64 or null */
  const dropless_tensor* y;       /* out [rows,columns] fp32 or bf16 */
} dropless_dequantize_args;

#ifdef __cplusplus
}
#endif

#endif
