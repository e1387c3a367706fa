// SPDX-License-Identifier: Apache-2.0
// A grouped product as the kernels see it: out_g[m,n] = alpha * sum_k a_g[m,k] b_g[n,k] + ...
//
// fprop: a = x, b = W; dgrad: a = dy, b = W; both with the rows of a zone as m. wgrad: a = dy,
// b = x with the rows of a zone as k (GROUPED_GEMM-0). Plain data, passed to kernels by value.
#pragma once

#include "optimized/cuda/planted_fault.h"
#include "optimized/cuda/zones.h"

namespace dropless::cuda {

// Scales of an operand: blocks run along the contraction, `outer` is m or n (MXFP8-1). starts[g] is
// where those of group g begin and blocks[g] how many lie along the contraction; both are made on
// the device, since they depend on the zones.
struct GemmScales {
  const std::uint8_t* data = nullptr;
  bool packed = false;
  Index outer_stride = 0, block_stride = 0;  // linear
  Index group_stride = 0;                    // linear scales of weights
  Index element_stride = 1;                  // packed
  Index* starts = nullptr;
  Index* blocks = nullptr;

  DROPLESS_HOST_DEVICE std::uint8_t at(Index g, Index outer, Index block) const {
    if (!packed) return data[starts[g] + outer * outer_stride + block * block_stride];
    const Index tile = outer / 128 * ((blocks[g] + 3) / 4) + block / 4;
    const Index inside = outer % 32 * 16 + outer % 128 / 32 * 4 + block % 4;  // MXFP8-7
    return data[(starts[g] + tile * 512 + inside) * element_stride];
  }
};

// Which axis of an operand the rows of a zone are; weights have one matrix per group instead.
enum class GemmRagged : std::int32_t { none, outer, contraction };

struct GemmOperand {
  const void* data = nullptr;
  dropless_dtype dtype = DROPLESS_BF16;
  GemmRagged ragged = GemmRagged::none;
  Index outer_stride = 0, k_stride = 0, group_stride = 0;  // in elements
  GemmScales scales;

  DROPLESS_HOST_DEVICE Index start(const Zones& zones, Index g) const {
    if (ragged == GemmRagged::none) return g * group_stride;
    return zones.first(g) * (ragged == GemmRagged::outer ? outer_stride : k_stride);
  }
};

// Output, C or bias: element (row, column), of the whole buffer where rows are ragged, else of
// group g.
struct GemmMatrix {
  void* data = nullptr;
  dropless_dtype dtype = DROPLESS_BF16;
  Index row_stride = 0, column_stride = 1, group_stride = 0;
};

struct GroupedProduct {
  Zones zones;
  Index m = 0;  // wgrad; otherwise the length of a zone
  Index n = 0;
  Index k = 0;  // fprop and dgrad; otherwise the real rows of a zone
  GemmOperand a, b;
  double alpha = 1, beta = 0;
  GemmMatrix out;
  GemmMatrix c;           // read where beta is not 0
  GemmMatrix bias;        // [E, n], data may be null
  bool in_place = false;  // c is out
  // Only groups with flags[g] == wanted_flag are computed; all of them without flags (MXFP8).
  const int* flags = nullptr;
  int wanted_flag = 0;
  const int* needed = nullptr;   // the simple kernels do nothing where it is given and zero
  const int* refusal = nullptr;  // device_refusal.h
  PlantedFault fault;

  DROPLESS_HOST_DEVICE bool ragged_k() const { return a.ragged == GemmRagged::contraction; }
  DROPLESS_HOST_DEVICE bool selects(Index g) const {
    return flags == nullptr || flags[g] == wanted_flag;
  }
  DROPLESS_HOST_DEVICE Index real(Index g) const { return zones.real_end(g) - zones.first(g); }
  DROPLESS_HOST_DEVICE Index rows(Index g) const {
    return ragged_k() ? m : zones.end(g) - zones.first(g);
  }
  DROPLESS_HOST_DEVICE Index depth(Index g) const { return ragged_k() ? real(g) : k; }
  // C is dW and beta is 1: the gradient of an expert without rows keeps its bits (GROUPED_GEMM-5).
  DROPLESS_HOST_DEVICE bool keeps_empty() const { return in_place && beta == 1.0; }
};

// Simple kernels: any strides, any dtypes, any GPU from sm_80. bf16 operands go through tensor
// cores, everything else through fp32 FMAs.
void grouped_gemm_simple(const GroupedProduct& product, cudaStream_t stream);

// wgmma + TMA (sm_90a): bf16 operands, dense along one axis, strides that TMA accepts.
[[nodiscard]] bool grouped_gemm_hopper_takes(const GroupedProduct& product, const Device& device);
void grouped_gemm_hopper(const GroupedProduct& product, const Device& device, cudaStream_t stream);

}  // namespace dropless::cuda
