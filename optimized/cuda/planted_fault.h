// SPDX-License-Identifier: Apache-2.0
// Faults of GPU kernels, planted only in a build that is made for them (DROPLESS_CUDA_FAULTS=ON)
// and chosen by the environment variable DROPLESS_CUDA_FAULT when the process starts. In every
// other build PlantedFault::is() is false at compile time, and no kernel holds any of this.
// scripts/gpu_faults.sh runs the suite against each of them.
#pragma once

#include <dropless/formats/host_device.h>

#include <cstdlib>
#include <cstring>

namespace dropless::cuda {

// X(name, stage whose cases must find it)
#define DROPLESS_CUDA_FAULT_LIST(X)                                                       \
  X(stale_accumulator, grouped_gemm)      /* wgrad of an empty expert keeps old sums */   \
  X(rows_behind_zone, grouped_gemm)       /* a tail tile is written in full */            \
  X(contraction_tail, grouped_gemm)       /* wgrad adds the next expert's first rows */   \
  X(padding_unwritten, grouped_gemm)      /* padding rows keep what memory held */        \
  X(half_tile_skipped, grouped_gemm)      /* rows 64 .. 127 of a tile are not computed */ \
  X(operand_of_first_group, grouped_gemm) /* W of expert 0 for every expert */            \
  X(offset_in_32_bits, grouped_gemm)      /* bytes from the start of the output, 2^32 */  \
  X(products_before_copies, grouped_gemm) /* the barrier is waited for too late */        \
  X(order_of_arrival, permutation)        /* rows of an expert as atomics come first */

enum class Fault : int {
  none,
#define DROPLESS_CUDA_FAULT_NAME(name, stage) name,
  DROPLESS_CUDA_FAULT_LIST(DROPLESS_CUDA_FAULT_NAME)
#undef DROPLESS_CUDA_FAULT_NAME
};

// Passed to kernels by value; the host chooses when it is made.
#ifdef DROPLESS_CUDA_FAULTS
struct PlantedFault {
  Fault chosen = from_environment();
  [[nodiscard]] DROPLESS_HOST_DEVICE bool is(Fault fault) const { return chosen == fault; }

 private:
  static Fault from_environment() {
    const char* name = std::getenv("DROPLESS_CUDA_FAULT");
    if (name == nullptr) return Fault::none;
#define DROPLESS_CUDA_FAULT_MATCH(fault, stage) \
  if (std::strcmp(name, #fault) == 0) return Fault::fault;
    DROPLESS_CUDA_FAULT_LIST(DROPLESS_CUDA_FAULT_MATCH)
#undef DROPLESS_CUDA_FAULT_MATCH
    return Fault::none;
  }
};
#else
struct PlantedFault {
  [[nodiscard]] DROPLESS_HOST_DEVICE static constexpr bool is(Fault) { return false; }
};
#endif

}  // namespace dropless::cuda
