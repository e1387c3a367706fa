/* SPDX-License-Identifier: Apache-2.0
 * A complete implementation of six operations in plain C99, written for reading: wrap your own
 * kernels in the same way. It offers permute_plan, permute_forward, quantize (in quantize.c) and
 * the three grouped GEMMs for fp32 and bf16. What it leaves out the suite reports as not offered.
 *
 *   cd examples/plain_c
 *   cc -std=c99 -O2 -shared -fPIC -I ../../include -o libmine.so my_implementation.c quantize.c -lm
 *   dropless run --implementation ./libmine.so
 *
 * Comments cite the clauses of conformance/clauses/; `dropless explain MXFP8-2` prints one.
 */
#include "tensors.h"

dropless_status quantize(void* context, dropless_call* call, dropless_quantize_args* a);

/* ---- Permutation ---------------------------------------------------------------------------
 */

static dropless_status permute_plan(void* context, dropless_call* call,
                                    dropless_permute_plan_args* a) {
  const int ids_dtypes = 1 << DROPLESS_I32 | I64;
  const int64_t experts = a->num_experts, capacity = a->row_capacity;
  (void)context;
  REFUSE_IF(experts < 0 || capacity < -1, "num_experts or row_capacity is negative");
  REFUSE_IF(!fits(a->ids, ids_dtypes, 2, ANY, ANY, 1), "ids must be [T,K], i32 or i64");
  const int64_t tokens = a->ids->shape[0], top_k = a->ids->shape[1];
  REFUSE_IF(!fits(a->tokens_per_expert, I64, 1, experts, 1, 1),
            "tokens_per_expert must be [E] i64");
  REFUSE_IF(!fits(a->offsets, I64, 1, experts + 1, 1, 1), "offsets must be [E+1] i64");
  REFUSE_IF(!fits(a->row_map, I64, 2, tokens, top_k, 1), "row_map must be [T,K] i64");
  REFUSE_IF(!fits(a->source, I64, 1, ANY, 1, 1), "source must be [N_max] i64");
  REFUSE_IF(!fits(a->demand, I64, 1, 1, 1, 1), "demand must be [1] i64");
  int64_t pairs = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t id = get_integer(a->ids, t, j);
      REFUSE_IF(id < -1 || id >= experts, "an id is outside -1 .. E-1");
      pairs += id >= 0;
      for (int64_t before = 0; before < j && id >= 0; ++before) {
        REFUSE_IF(get_integer(a->ids, t, before) == id, "a token has the same expert twice");
      }
    }
  }
  const int64_t kept = capacity >= 0 && capacity < pairs ? capacity : pairs; /* PERMUTATION-5 */
  REFUSE_IF(a->source->shape[0] < kept, "source is shorter than the rows needed");

  /* Counting sort by (expert, token, slot), PERMUTATION-1a. next[e] is the next row of expert e. */
  int64_t* next = calloc((size_t)experts + 1, sizeof *next);
  if (next == NULL) return answer(call, DROPLESS_OUT_OF_MEMORY, "no memory for the counts");
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t id = get_integer(a->ids, t, j);
      if (id >= 0) ++next[id + 1];
    }
  }
  for (int64_t e = 0; e < experts; ++e) next[e + 1] += next[e];
  for (int64_t e = 0; e <= experts; ++e) {
    put_integer(a->offsets, e, 0, next[e] < kept ? next[e] : kept);
    if (e > 0) {
      put_integer(a->tokens_per_expert, e - 1, 0,
                  get_integer(a->offsets, e, 0) - get_integer(a->offsets, e - 1, 0));
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t id = get_integer(a->ids, t, j), row = id < 0 ? -1 : next[id]++;
      const int survives = row >= 0 && row < kept;
      put_integer(a->row_map, t, j, survives ? row : -1);
      if (survives) put_integer(a->source, row, 0, t * top_k + j);
    }
  }
  put_integer(a->demand, 0, 0, pairs);
  free(next);
  return done(call);
}

/* Copies bytes, since NaN payloads and signed zeros have to arrive (PERMUTATION-4a). */
static void copy_row(const dropless_tensor* to, int64_t row, const dropless_tensor* from,
                     int64_t token) {
  const size_t bytes = (size_t)bytes_of(to->dtype);
  for (int64_t c = 0; c < to->shape[1]; ++c) {
    if (token < 0) {
      memset(at(to, row, c, 0), 0, bytes); /* padding, PERMUTATION-3b */
    } else {
      memcpy(at(to, row, c, 0), at(from, token, c, 0), bytes);
    }
  }
}

static dropless_status permute_forward(void* context, dropless_call* call,
                                       dropless_permute_args* a) {
  const dropless_tensor *x = a->x, *weights = a->weights, *scales = a->scales;
  (void)context;
  REFUSE_IF(!fits(x, ANY_DTYPE, 2, ANY, ANY, 1), "x must be [T,H]");
  REFUSE_IF(!fits(a->row_map, I64, 2, x->shape[0], ANY, 1), "row_map must be [T,K] i64");
  REFUSE_IF(!fits(a->source, I64, 1, ANY, 1, 1), "source must be [N_max] i64");
  const int64_t tokens = x->shape[0], top_k = a->row_map->shape[1], length = a->source->shape[0];
  REFUSE_IF(!fits(a->rows, 1 << x->dtype, 2, length, x->shape[1], 1), "rows must be [N_max,H]");
  REFUSE_IF(weights != NULL && (!fits(weights, 1 << DROPLESS_FP32, 2, tokens, top_k, 1) ||
                                !fits(a->row_weights, 1 << DROPLESS_FP32, 1, length, 1, 1)),
            "weights must be [T,K] and row_weights [N_max], fp32");
  REFUSE_IF(
      scales != NULL && (!fits(scales, ANY_DTYPE, 2, tokens, ANY, 1) ||
                         !fits(a->row_scales, 1 << scales->dtype, 2, length, scales->shape[1], 1)),
      "scales must be [T,S] and row_scales [N_max,S]");
  const int64_t experts = a->offsets != NULL ? a->offsets->shape[0] - 1 : -1;
  const zones z = {a->offsets, NULL, experts, length};
  REFUSE_IF(a->offsets == NULL || !zones_are_legal(&z), "offsets fall or end beyond the buffer");
  const int64_t rows = zone_begin(&z, experts);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t pair = get_integer(a->source, row, 0);
    REFUSE_IF(pair < -1 || pair >= tokens * top_k, "source names a pair that does not exist");
  }
  for (int64_t row = 0; row < rows; ++row) { /* rows beyond stay untouched, PERMUTATION-8 */
    const int64_t pair = get_integer(a->source, row, 0), token = pair < 0 ? -1 : pair / top_k;
    copy_row(a->rows, row, x, token);
    if (scales != NULL) copy_row(a->row_scales, row, scales, token);
    if (weights != NULL) {
      char* to = at(a->row_weights, row, 0, 0);
      if (pair < 0) {
        memset(to, 0, 4);
      } else {
        memcpy(to, at(weights, token, pair % top_k, 0), 4);
      }
    }
  }
  return done(call);
}

/* ---- Grouped GEMM --------------------------------------------------------------------------
 */

/* A copy as doubles without gaps: [d0,d1,d2], shapes beyond the rank 1. Null without memory. */
static double* unpacked(const dropless_tensor* t) {
  const int64_t n1 = t->rank > 1 ? t->shape[1] : 1, n2 = t->rank > 2 ? t->shape[2] : 1;
  double* values = malloc((size_t)(t->shape[0] * n1 * n2 + 1) * sizeof *values);
  for (int64_t i = 0; values != NULL && i < t->shape[0]; ++i) {
    for (int64_t j = 0; j < n1; ++j) {
      for (int64_t k = 0; k < n2; ++k) values[(i * n1 + j) * n2 + k] = get(t, i, j, k);
    }
  }
  return values;
}

/* What the three products have in common: result = alpha * left * right (+ more). Sums are taken in
 * double, so any declared accumulator is met, and one rounding ends them. */
typedef struct {
  const dropless_tensor *offsets, *counts, *out;
  int64_t experts, rows, outs, ins;
  double *left, *right, *sums; /* sums: one row of fprop or dgrad, or one expert of wgrad */
} product;

static int has_scales(const dropless_operand* operand) {
  return operand != NULL && operand->scales != NULL;
}

static dropless_status run_product(dropless_call* call, product* p, const dropless_tensor* left,
                                   const dropless_tensor* right, int64_t sums,
                                   void (*expert)(const product*, const void*, int64_t, int64_t,
                                                  int64_t, int64_t),
                                   const void* args) {
  const zones z = {p->offsets, p->counts, p->experts, p->rows};
  REFUSE_IF(p->offsets == NULL || !zones_are_legal(&z), "offsets or counts are illegal");
  p->left = unpacked(left), p->right = unpacked(right);
  p->sums = malloc((size_t)(sums + 1) * sizeof *p->sums);
  const int memory = p->left != NULL && p->right != NULL && p->sums != NULL;
  for (int64_t e = 0; memory && e < p->experts; ++e) {
    expert(p, args, e, zone_begin(&z, e), real_end(&z, e), zone_begin(&z, e + 1));
  }
  free(p->left), free(p->right), free(p->sums);
  return memory ? done(call) : answer(call, DROPLESS_OUT_OF_MEMORY, "no memory for the operands");
}

static void fprop_expert(const product* p, const void* args, int64_t e, int64_t begin, int64_t real,
                         int64_t end) {
  const dropless_gemm_fprop_args* a = args;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t o = 0; o < p->outs; ++o) {
      double sum = 0;
      for (int64_t i = 0; r < real && i < p->ins; ++i) {
        sum += p->left[r * p->ins + i] * p->right[(e * p->outs + o) * p->ins + i];
      }
      const double bias = a->bias != NULL ? get(a->bias, e, o, 0) : 0;
      put(p->out, r, o, 0, r < real ? a->alpha * sum + bias : 0); /* padding: 0, GROUPED_GEMM-2b */
    }
  }
}

static void dgrad_expert(const product* p, const void* args, int64_t e, int64_t begin, int64_t real,
                         int64_t end) {
  const dropless_gemm_dgrad_args* a = args;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < p->ins; ++i) p->sums[i] = 0;
    for (int64_t o = 0; r < real && o < p->outs; ++o) {
      const double dy = p->left[r * p->outs + o], *w = p->right + (e * p->outs + o) * p->ins;
      for (int64_t i = 0; i < p->ins; ++i) p->sums[i] += dy * w[i];
    }
    for (int64_t i = 0; i < p->ins; ++i) put(p->out, r, i, 0, r < real ? a->alpha * p->sums[i] : 0);
  }
}

/* An expert without rows gets exact zeros or beta * C; only in place with beta = 1 nothing is to be
 * done, not even -0 + 0 (GROUPED_GEMM-5). */
static void wgrad_expert(const product* p, const void* args, int64_t e, int64_t begin, int64_t real,
                         int64_t end) {
  const dropless_gemm_wgrad_args* a = args;
  const int in_place = a->c != NULL && a->c->data == p->out->data;
  (void)end;
  if (begin == real && in_place && a->beta == 1) return;
  for (int64_t n = 0; n < p->outs * p->ins; ++n) p->sums[n] = 0;
  for (int64_t r = begin; r < real; ++r) {
    for (int64_t o = 0; o < p->outs; ++o) {
      const double dy = p->left[r * p->outs + o], *x = p->right + r * p->ins;
      for (int64_t i = 0; i < p->ins; ++i) p->sums[o * p->ins + i] += dy * x[i];
    }
  }
  for (int64_t o = 0; o < p->outs; ++o) {
    for (int64_t i = 0; i < p->ins; ++i) { /* C is not read for beta = 0, GROUPED_GEMM-6c */
      const double c = a->beta != 0 ? a->beta * get(a->c, e, o, i) : 0;
      put(p->out, e, o, i, a->alpha * p->sums[o * p->ins + i] + c);
    }
  }
}

#define MXFP8_IS_NOT_OFFERED(left, right)    \
  if (has_scales(left) || has_scales(right)) \
  return answer(call, DROPLESS_NOT_SUPPORTED, "MXFP8 operands are not offered")

static dropless_status gemm_fprop(void* context, dropless_call* call, dropless_gemm_fprop_args* a) {
  (void)context;
  MXFP8_IS_NOT_OFFERED(a->x, a->w);
  REFUSE_IF(a->w == NULL || !fits(a->w->values, FLOATS, 3, ANY, ANY, ANY), "w must be [E,O,I]");
  const int64_t *w = a->w->values->shape, experts = w[0], outs = w[1], ins = w[2];
  REFUSE_IF(a->x == NULL || !fits(a->x->values, FLOATS, 2, ANY, ins, 1), "x must be [N_max,I]");
  const int64_t rows = a->x->values->shape[0];
  REFUSE_IF(a->bias != NULL && !fits(a->bias, FLOATS, 2, experts, outs, 1), "bias must be [E,O]");
  REFUSE_IF(!fits(a->y, FLOATS, 2, rows, outs, 1), "y must be [N_max,O], fp32 or bf16");
  product p = {a->offsets, a->counts, a->y, experts, rows, outs, ins, NULL, NULL, NULL};
  return run_product(call, &p, a->x->values, a->w->values, 0, fprop_expert, a);
}

static dropless_status gemm_dgrad(void* context, dropless_call* call, dropless_gemm_dgrad_args* a) {
  (void)context;
  MXFP8_IS_NOT_OFFERED(a->dy, a->w);
  REFUSE_IF(a->w == NULL || !fits(a->w->values, FLOATS, 3, ANY, ANY, ANY), "w must be [E,O,I]");
  const int64_t *w = a->w->values->shape, experts = w[0], outs = w[1], ins = w[2];
  REFUSE_IF(a->dy == NULL || !fits(a->dy->values, FLOATS, 2, ANY, outs, 1), "dy must be [N_max,O]");
  const int64_t rows = a->dy->values->shape[0];
  REFUSE_IF(!fits(a->dx, FLOATS, 2, rows, ins, 1), "dx must be [N_max,I], fp32 or bf16");
  product p = {a->offsets, a->counts, a->dx, experts, rows, outs, ins, NULL, NULL, NULL};
  return run_product(call, &p, a->dy->values, a->w->values, ins, dgrad_expert, a);
}

static dropless_status gemm_wgrad(void* context, dropless_call* call, dropless_gemm_wgrad_args* a) {
  (void)context;
  MXFP8_IS_NOT_OFFERED(a->dy, a->x);
  REFUSE_IF(!fits(a->dw, FLOATS, 3, ANY, ANY, ANY), "dw must be [E,O,I], fp32 or bf16");
  const int64_t *w = a->dw->shape, experts = w[0], outs = w[1], ins = w[2];
  REFUSE_IF(a->dy == NULL || !fits(a->dy->values, FLOATS, 2, ANY, outs, 1), "dy must be [N_max,O]");
  const int64_t rows = a->dy->values->shape[0];
  REFUSE_IF(a->x == NULL || !fits(a->x->values, FLOATS, 2, rows, ins, 1), "x must be [N_max,I]");
  REFUSE_IF((a->c != NULL || a->beta != 0) && !fits(a->c, FLOATS, 3, experts, outs, ins),
            "c must be [E,O,I] when beta is not 0");
  product p = {a->offsets, a->counts, a->dw, experts, rows, outs, ins, NULL, NULL, NULL};
  return run_product(call, &p, a->dy->values, a->x->values, outs * ins, wgrad_expert, a);
}

/* ---- The table -----------------------------------------------------------------------------
 */

/* All zero: every default. Declare here what your kernels do differently. */
static const dropless_profile profile = {.struct_size = sizeof(dropless_profile),
                                         .struct_version = DROPLESS_STRUCT_VERSION};

static const dropless_implementation mine = {.struct_size = sizeof(dropless_implementation),
                                             .contract_version = DROPLESS_CONTRACT_VERSION,
                                             .name = "plain C example",
                                             .version = "1",
                                             .build = "C99, plain loops",
                                             .memory_space = DROPLESS_HOST,
                                             .profile = &profile,
                                             .permute_plan = permute_plan,
                                             .permute_forward = permute_forward,
                                             .quantize = quantize,
                                             .gemm_fprop = gemm_fprop,
                                             .gemm_dgrad = gemm_dgrad,
                                             .gemm_wgrad = gemm_wgrad};

const dropless_implementation* dropless_get_implementation(uint32_t suite_version) {
  (void)suite_version;
  return &mine;
}
