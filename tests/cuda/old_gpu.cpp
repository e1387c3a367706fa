// SPDX-License-Identifier: Apache-2.0
// One GPU of compute capability 7.5, put between the GPU implementation and the CUDA runtime by the
// linker (--wrap). Nothing but what is read before such a GPU is refused.
#include <cuda_runtime_api.h>

extern "C" cudaError_t __wrap_cudaGetDeviceCount(int* count);
extern "C" cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int ordinal);

cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 7;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 5;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 40;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 64 << 10;
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}
