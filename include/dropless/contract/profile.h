/* SPDX-License-Identifier: Apache-2.0
 * The profile: choices that public systems make differently. An implementation declares them once
 * and is then held to its own declaration. A value outside the listed ones is refused at load time.
 * Zero is always the default, so `{sizeof p, DROPLESS_STRUCT_VERSION}` is the default profile,
 * except for the three integers `alignment`, `gemm_alignment` and `promotion_period` (0 means 1, 1
 * and "never").
 */
#ifndef DROPLESS_CONTRACT_PROFILE_H
#define DROPLESS_CONTRACT_PROFILE_H

#include "dropless/contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DROPLESS_TIE_LOWEST_INDEX = 0,
  DROPLESS_TIE_HIGHEST_INDEX = 1,
  DROPLESS_TIE_ANY = 2,
  DROPLESS_TIE_DECLARED = 3 /* a total order, given by tie_rank */
};
enum {
  DROPLESS_ORDER_DESCENDING_SCORE = 0,
  DROPLESS_ORDER_ASCENDING_ID = 1,
  DROPLESS_ORDER_ANY = 2
};
enum { DROPLESS_WEIGHT_GATHER = 0, DROPLESS_WEIGHT_SUBTRACT = 1 };
enum { DROPLESS_GROUP_WIDTH_K_OVER_KEPT = 0, DROPLESS_GROUP_WIDTH_TWO = 1 };
enum { DROPLESS_EXPONENTIAL_ACCURATE = 0, DROPLESS_EXPONENTIAL_FAST = 1 };
enum { DROPLESS_DEVICE_VALUES_CHECKED = 0, DROPLESS_DEVICE_VALUES_UNCHECKED = 1 };
enum { DROPLESS_BALANCE_FACTOR_ONE = 0, DROPLESS_BALANCE_FACTOR_TOP_K = 1 };
enum { DROPLESS_BALANCE_COUNTS_REAL = 0, DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K = 1 };
enum { DROPLESS_EMPTY_EXPERT_NONE = 0, DROPLESS_EMPTY_EXPERT_ONE_BLOCK = 1 };
enum { DROPLESS_UNPERMUTE_SLOT_ORDER = 0, DROPLESS_UNPERMUTE_ANY_ORDER = 1 };
enum {
  DROPLESS_SCALE_RCEIL = 0,
  DROPLESS_SCALE_FLOOR = 1,
  DROPLESS_SCALE_CEIL = 2,
  DROPLESS_SCALE_EVEN = 3
};
enum { DROPLESS_SPECIAL_ELEMENT = 0, DROPLESS_SPECIAL_BLOCK = 1 };
enum { DROPLESS_TAIL_UNTOUCHED = 0, DROPLESS_TAIL_ZERO = 1 };
enum {
  DROPLESS_ACCUMULATOR_FP32 = 0,           /* every partial result rounded to fp32, any order */
  DROPLESS_ACCUMULATOR_TENSOR_CORE_25 = 1, /* 25 fraction bits at alignment, truncated */
  DROPLESS_ACCUMULATOR_HOPPER_FP8_13 = 2   /* 13 fraction bits, promoted every promotion_period */
};
enum { DROPLESS_PARTIALS_FP32 = 0, DROPLESS_PARTIALS_BF16 = 1 };
enum {
  DROPLESS_DISPATCH_FLAT = 0,
  DROPLESS_DISPATCH_EXPERT_MAJOR = 1,
  DROPLESS_DISPATCH_UNORDERED_FLAT = 2,        /* rows of FLAT in any order, row_source tells */
  DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR = 3 /* zones of EXPERT_MAJOR, any order inside */
};
enum { DROPLESS_FLAT_IDS_ASCENDING = 0, DROPLESS_FLAT_IDS_IN_PLACE = 1 };
enum { DROPLESS_COMBINE_UNWEIGHTED = 0, DROPLESS_COMBINE_WEIGHTED = 1 };
enum {
  DROPLESS_COMBINE_ROUNDS_ONCE = 0,
  DROPLESS_COMBINE_ROUNDS_PER_RANK = 1,
  DROPLESS_COMBINE_ROUNDS_PER_NODE = 2
};
enum {
  DROPLESS_OVERFLOW_ERROR = 0,
  DROPLESS_OVERFLOW_TRAP = 1,
  DROPLESS_OVERFLOW_DROP = 2,
  DROPLESS_OVERFLOW_RETRY = 3
};
enum { DROPLESS_REPLICA_TOKEN_MODULO = 0, DROPLESS_REPLICA_DECLARED = 1 };
enum {
  DROPLESS_DETERMINISTIC_ANY_THREADS = 0,  /* same input, any thread count: the same bits */
  DROPLESS_DETERMINISTIC_SAME_THREADS = 1, /* same input, same thread count: the same bits */
  DROPLESS_DETERMINISTIC_NO = 2
};

typedef struct dropless_profile {
  uint32_t struct_size;
  uint32_t struct_version;
  /* routing */
  int32_t tie_rule;        /* ROUTING-5: order of equal compared values, everywhere */
  int32_t selection_order; /* ROUTING-5: order of the K ids in the output */
  int32_t weight_source;   /* ROUTING-2 */
  int32_t group_width;     /* ROUTING-4: w of the top-w sum */
  int32_t exponential;     /* ROUTING-6: a fast one has a wider bound */
  int32_t device_values;   /* GENERAL-3 */
  int32_t balance_factor;  /* ROUTING-14 */
  int32_t balance_counts;  /* ROUTING-14 */
  /* permutation */
  int32_t alignment;       /* PERMUTATION-3: 1, 16, 32, 128 or 256 rows */
  int32_t empty_expert;    /* PERMUTATION-3 */
  int32_t unpermute_order; /* PERMUTATION-6 */
  int32_t tail_rows;       /* GROUPED_GEMM-4, PERMUTATION-8 */
  /* mxfp8 */
  int32_t scale_rule;         /* MXFP8-2 */
  int32_t special_values;     /* MXFP8-4: NaN / Inf in a block */
  int32_t scale_padding_byte; /* MXFP8-7: 0 by default */
  /* grouped_gemm */
  int32_t accumulator_fp32; /* GROUPED_GEMM-6, by the type of the operands */
  int32_t accumulator_bf16;
  int32_t accumulator_mxfp8;
  int32_t promotion_period; /* products between promotions: mxfp8, HOPPER_FP8_13; 0 never */
  int32_t partials;         /* GROUPED_GEMM-6: bf16 partial sums must be declared */
  int32_t gemm_alignment;   /* GROUPED_GEMM-1: rows to which zones must be aligned */
  /* exchange */
  int32_t dispatch_layout;   /* EXCHANGE-3 */
  int32_t flat_ids;          /* EXCHANGE-3 */
  int32_t combine_weighting; /* EXCHANGE-6, expert-major */
  int32_t combine_rounding;  /* EXCHANGE-6 */
  int32_t overflow_policy;   /* EXCHANGE-10 */
  int32_t replica_map;       /* EXCHANGE-0 */
  /* everything */
  int32_t determinism;
  /* Position of expert (or group) `index` among `count` when values are equal: TIE_DECLARED. */
  int64_t (*tie_rank)(int64_t count, int64_t index);
  /* Which of `copies` physical slots serves this pair: REPLICA_DECLARED. */
  int64_t (*replica_copy)(int64_t source_rank, int64_t token, int64_t slot, int64_t expert,
                          int64_t copies);
} dropless_profile;

#ifdef __cplusplus
}
#endif

#endif
