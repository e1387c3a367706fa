// SPDX-License-Identifier: Apache-2.0
// Reading the properties of a GPU; why one cannot be used.
#include "optimized/cuda/device.h"

#include <map>
#include <mutex>

#include "optimized/cuda/status.h"

namespace dropless::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Device read_device(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    cudaGetLastError();
    not_supported("the NVIDIA driver serves CUDA " + (driver == 0 ? "none" : version_text(driver)) +
                  ", this build needs " + version_text(CUDART_VERSION) + "; update the driver");
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    cudaGetLastError();
    not_supported("no NVIDIA GPU is visible to this process");
  }
  check(error, "counting GPUs");
  if (ordinal < 0 || ordinal >= count) {
    not_supported("device " + std::to_string(ordinal) + " does not exist, this process sees " +
                  std::to_string(count));
  }
  Device found;
  found.ordinal = ordinal;
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, ordinal), "reading an attribute of the GPU");
    return value;
  };
  found.major = attribute(cudaDevAttrComputeCapabilityMajor);
  found.minor = attribute(cudaDevAttrComputeCapabilityMinor);
  found.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  found.shared_memory_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (found.major < 8) {
    not_supported("compute capability " + std::to_string(found.major) + "." +
                  std::to_string(found.minor) + "; this build runs from 8.0 on");
  }
  found.code = found.is_hopper() ? "sm90a" : found.is_blackwell() ? "sm100a" : "sm80";
  return found;
}

}  // namespace

const Device& device(int ordinal) {
  static std::mutex mutex;
  static std::map<int, Device> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(ordinal);
  return found != known.end() ? found->second
                              : known.emplace(ordinal, read_device(ordinal)).first->second;
}

}  // namespace dropless::cuda
