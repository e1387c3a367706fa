/* SPDX-License-Identifier: Apache-2.0
 * Basic types of the dropless contract: tensors, dtypes, statuses, calls.
 *
 * Every struct of the contract begins with its size in bytes and its version. Fields are only ever
 * appended. A reader must not touch a field that lies beyond the size the writer declared; a
 * missing trailing field means zero. Example:
 *
 *     dropless_tensor x = {sizeof x, DROPLESS_STRUCT_VERSION};
 *     x.data = buffer;
 *     x.dtype = DROPLESS_BF16;
 *     x.rank = 2;
 *     x.shape[0] = T, x.shape[1] = H;
 *     x.strides[0] = H, x.strides[1] = 1;   (in elements)
 */
#ifndef DROPLESS_CONTRACT_TYPES_H
#define DROPLESS_CONTRACT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The major number changes when an existing field changes its meaning, the minor one when something
 * is appended. A shared library is refused when its major number differs. */
#define DROPLESS_CONTRACT_MAJOR 1
#define DROPLESS_CONTRACT_MINOR 0
#define DROPLESS_CONTRACT_VERSION \
  ((uint32_t)(DROPLESS_CONTRACT_MAJOR * 1000 + DROPLESS_CONTRACT_MINOR))
#define DROPLESS_STRUCT_VERSION 1u

#define DROPLESS_MAX_RANK 4
#define DROPLESS_MESSAGE_BYTES 512
#define DROPLESS_PATH_BYTES 96

/* True when `pointer`'s struct, as declared by its writer, contains `field`. */
#define DROPLESS_HAS_FIELD(pointer, type, field) \
  ((pointer)->struct_size >= offsetof(type, field) + sizeof(((type*)0)->field))

typedef int32_t dropless_dtype;
enum {
  DROPLESS_FP32 = 0,
  DROPLESS_BF16 = 1,
  DROPLESS_FP16 = 2,
  DROPLESS_E4M3 = 3, /* OCP OFP8 E4M3, "fn": no infinities, NaN is 0x7F and 0xFF */
  DROPLESS_E5M2 = 4, /* OCP OFP8 E5M2, with infinities */
  DROPLESS_E8M0 = 5, /* OCP MX block scale: 2^(byte - 127), 255 is NaN */
  DROPLESS_I32 = 6,
  DROPLESS_I64 = 7,
  DROPLESS_U8 = 8
};

typedef int32_t dropless_memory_space;
enum { DROPLESS_HOST = 0, DROPLESS_CUDA_DEVICE = 1 };

/* What an operation returns. Operations never abort, print, exit or throw. */
typedef int32_t dropless_status;
enum {
  DROPLESS_OK = 0,
  DROPLESS_INVALID_ARGUMENT = 1, /* refused at once, outputs untouched (GENERAL-3) */
  DROPLESS_NOT_SUPPORTED = 2,    /* a legal request that this implementation does not offer */
  DROPLESS_OVERFLOW = 3,         /* exchange only: demand exceeds capacity, policy "error" */
  DROPLESS_OUT_OF_MEMORY = 4,
  DROPLESS_DEVICE_ERROR = 5,
  DROPLESS_TIMEOUT = 6,   /* exchange only: a peer did not answer in time */
  DROPLESS_PEER_LOST = 7, /* exchange only: a peer is gone */
  DROPLESS_INTERNAL_ERROR = 8,
  DROPLESS_WORKSPACE_TOO_SMALL = 9 /* call->workspace_required says how much is needed */
};

/* A strided view of memory that the caller owns. Elements of 8-bit formats are one byte each.
 * A tensor without elements may have a null data pointer. */
typedef struct dropless_tensor {
  uint32_t struct_size;
  uint32_t struct_version;
  void* data;
  dropless_dtype dtype;
  dropless_memory_space memory_space;
  int32_t rank;
  int32_t reserved;
  int64_t shape[DROPLESS_MAX_RANK];
  int64_t strides[DROPLESS_MAX_RANK]; /* in elements */
} dropless_tensor;

/* One call. The caller fills the upper half, the operation the lower half. */
typedef struct dropless_call {
  uint32_t struct_size;
  uint32_t struct_version;
  void* stream;    /* CUstream for CUDA memory, null otherwise; work is ordered on it */
  int32_t threads; /* host threads to use at most; 0 leaves the choice to the implementation */
  int32_t device;  /* CUDA ordinal, 0 on the host */
  void* workspace; /* scratch memory in the implementation's space, or null: it may allocate */
  uint64_t workspace_bytes;
  uint64_t workspace_required;          /* out, with WORKSPACE_TOO_SMALL */
  char message[DROPLESS_MESSAGE_BYTES]; /* why, whenever the status is not DROPLESS_OK */
  char path[DROPLESS_PATH_BYTES];       /* the code path taken, such as "cpu/avx512/openblas" */
} dropless_call;

/* An operand of a product: plain values, or codes with block scales (MXFP8-1). */
typedef int32_t dropless_scale_layout;
enum {
  DROPLESS_SCALES_LINEAR = 0, /* MXFP8-6 */
  DROPLESS_SCALES_PACKED = 1  /* 128 x 4 tiles, MXFP8-7 */
};

typedef struct dropless_operand {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_tensor* values; /* fp32, bf16, or e4m3 / e5m2 codes */
  const dropless_tensor* scales; /* e8m0; null for plain values; rank 1 when packed */
  dropless_scale_layout scale_layout;
  int32_t reserved;
} dropless_operand;

#ifdef __cplusplus
}
#endif

#endif
