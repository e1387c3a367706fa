/* SPDX-License-Identifier: Apache-2.0
 * Reading arguments of the contract: shapes, strides, dtypes, zones of rows, and refusals.
 */
#ifndef PLAIN_C_TENSORS_H
#define PLAIN_C_TENSORS_H

#include <dropless/contract.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ANY = -1 };
enum { FLOATS = 1 << DROPLESS_FP32 | 1 << DROPLESS_BF16, I64 = 1 << DROPLESS_I64 };
enum { CODES = 1 << DROPLESS_E4M3 | 1 << DROPLESS_E5M2, ANY_DTYPE = 0x1FF };

static inline dropless_status answer(dropless_call* call, dropless_status status, const char* why) {
  strncpy(call->message, why, sizeof call->message - 1);
  return status;
}

/* Everything is examined before the first output is written (GENERAL-3). */
#define REFUSE_IF(condition, why) \
  if (condition) return answer(call, DROPLESS_INVALID_ARGUMENT, why)

static inline dropless_status done(dropless_call* call) {
  strncpy(call->path, "plain_c/loops", sizeof call->path - 1); /* GENERAL-0 */
  return DROPLESS_OK;
}

/* Is this a host tensor of one of these dtypes with this shape? Shapes beyond the rank are 1. */
static inline int fits(const dropless_tensor* t, int dtypes, int rank, int64_t s0, int64_t s1,
                       int64_t s2) {
  const int64_t wanted[3] = {s0, s1, s2};
  int64_t size = 1;
  if (t == NULL || t->memory_space != DROPLESS_HOST || t->rank != rank) return 0;
  if (t->dtype < 0 || t->dtype > DROPLESS_U8 || (dtypes >> t->dtype & 1) == 0) return 0;
  for (int axis = 0; axis < rank; ++axis) {
    if (t->shape[axis] < 0 || (wanted[axis] != ANY && t->shape[axis] != wanted[axis])) return 0;
    size *= t->shape[axis];
  }
  return size == 0 || t->data != NULL;
}

static inline int64_t bytes_of(dropless_dtype dtype) {
  static const int64_t bytes[] = {4, 2, 2, 1, 1, 1, 4, 8, 1};
  return bytes[dtype];
}

/* Address of an element; strides are in elements (GENERAL-6). */
static inline char* at(const dropless_tensor* t, int64_t i, int64_t j, int64_t k) {
  const int64_t index[3] = {i, j, k};
  int64_t offset = 0;
  for (int axis = 0; axis < t->rank; ++axis) offset += index[axis] * t->strides[axis];
  return (char*)t->data + offset * bytes_of(t->dtype);
}

static inline int64_t get_integer(const dropless_tensor* t, int64_t i, int64_t j) {
  return t->dtype == DROPLESS_I32 ? *(int32_t*)at(t, i, j, 0) : *(int64_t*)at(t, i, j, 0);
}

static inline void put_integer(const dropless_tensor* t, int64_t i, int64_t j, int64_t value) {
  *(int64_t*)at(t, i, j, 0) = value;
}

static inline double get(const dropless_tensor* t, int64_t i, int64_t j, int64_t k) {
  const char* element = at(t, i, j, k);
  uint32_t bits;
  float value;
  if (t->dtype == DROPLESS_FP32) return *(const float*)element;
  bits = (uint32_t) * (const uint16_t*)element << 16; /* bf16 is the upper half of an fp32 */
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* One rounding from double, to nearest even (GROUPED_GEMM-6b): never by way of fp32. */
static inline void put(const dropless_tensor* t, int64_t i, int64_t j, int64_t k, double value) {
  float rounded = (float)value;
  if (t->dtype == DROPLESS_FP32) {
    memcpy(at(t, i, j, k), &rounded, 4);
    return;
  }
  if (isfinite(value)) {
    int exponent;
    frexp(value, &exponent);
    if (exponent < -125) exponent = -125; /* subnormal: the last bit is worth 2^-133 */
    rounded = (float)(nearbyint(ldexp(value, 8 - exponent)) * ldexp(1, exponent - 8));
  }
  uint32_t bits;
  memcpy(&bits, &rounded, 4);
  const uint16_t half = (uint16_t)(isnan(value) ? 0x7FC0 : bits >> 16);
  memcpy(at(t, i, j, k), &half, 2);
}

/* Zones of rows: offsets [G+1], of which the first counts[g] rows are real. Without offsets all
 * `rows` are one zone. */
typedef struct {
  const dropless_tensor *offsets, *counts;
  int64_t groups, rows;
} zones;

static inline int64_t zone_begin(const zones* z, int64_t g) {
  return z->offsets != NULL ? get_integer(z->offsets, g, 0) : g * z->rows;
}

static inline int64_t real_end(const zones* z, int64_t g) {
  return z->counts != NULL ? zone_begin(z, g) + get_integer(z->counts, g, 0) : zone_begin(z, g + 1);
}

static inline int zones_are_legal(const zones* z) {
  if (z->offsets != NULL && !fits(z->offsets, I64, 1, z->groups + 1, 1, 1)) return 0;
  if (z->counts != NULL && !fits(z->counts, I64, 1, z->groups, 1, 1)) return 0;
  if (z->groups < 0 || zone_begin(z, 0) != 0 || zone_begin(z, z->groups) > z->rows) return 0;
  for (int64_t g = 0; g < z->groups; ++g) {
    const int64_t begin = zone_begin(z, g), end = zone_begin(z, g + 1);
    if (end < begin || real_end(z, g) < begin || real_end(z, g) > end) return 0;
  }
  return 1;
}

#endif
