// SPDX-License-Identifier: Apache-2.0
// What a CUDA error becomes on the suite's side of a device.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <new>
#include <string_view>

#include "conformance/judge/memory.h"

namespace dropless::conformance {

// Throws std::bad_alloc or, for every other error, DeviceFailure with what was tried.
inline void check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw DeviceFailure(
      fmt::format("{}: {}, {}", what, cudaGetErrorName(error), cudaGetErrorString(error)));
}

}  // namespace dropless::conformance
