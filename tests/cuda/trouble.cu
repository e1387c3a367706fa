// SPDX-License-Identifier: Apache-2.0
// The GPU implementation with an expert-bias update that goes wrong for 16 experts, in the way that
// DROPLESS_TROUBLE names: "illegal" writes to an address that is not mapped, "endless" never ends,
// "memory" asks for more than any device has.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "optimized/cuda/implementation.h"

namespace {

__global__ void write_nowhere(int* nowhere) {
  *nowhere = 1;
}

__global__ void wait_forever(volatile int* word) {
  while (*word == 0) {
  }
}

dropless_status trouble(dropless_call* call) {
  const char* const wish = std::getenv("DROPLESS_TROUBLE");
  const std::string way = wish == nullptr ? "" : wish;
  const auto stream = static_cast<cudaStream_t>(call->stream);
  void* memory = nullptr;
  if (way == "illegal") write_nowhere<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(0x1000));
  if (way == "endless" && cudaMalloc(&memory, sizeof(int)) == cudaSuccess) {
    cudaMemset(memory, 0, sizeof(int));
    wait_forever<<<1, 1, 0, stream>>>(static_cast<int*>(memory));
  }
  if (way == "memory") {
    const cudaError_t error = cudaMalloc(&memory, std::size_t{1} << 50);
    cudaGetLastError();
    std::snprintf(call->message, sizeof call->message, "1 PiB: %s", cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? DROPLESS_OUT_OF_MEMORY : DROPLESS_DEVICE_ERROR;
  }
  return DROPLESS_OK;
}

dropless_status bias_update(void* context, dropless_call* call, dropless_bias_update_args* args) {
  if (args->expert_bias->shape[0] == 16) {
    if (const dropless_status status = trouble(call); status != DROPLESS_OK) return status;
  }
  return dropless::cuda::implementation().bias_update(context, call, args);
}

}  // namespace

extern "C" const dropless_implementation* dropless_get_implementation(uint32_t) {
  static const dropless_implementation table = [] {
    dropless_implementation changed = dropless::cuda::implementation();
    changed.bias_update = bias_update;
    return changed;
  }();
  return &table;
}
