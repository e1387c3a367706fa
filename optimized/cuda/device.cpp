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
    const std::string needed = version_text(CUDART_VERSION);
    if (driver == 0) {
      not_supported("no NVIDIA driver is installed; this build needs one that serves CUDA " +
                    needed);
    }
    not_supported("the NVIDIA driver serves CUDA " + version_text(driver) + ", this build needs " +
                  needed + "; update the driver");
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
  found.code = code_for(found.major, found.minor, "sm_" DROPLESS_CUDA_CODE);
  return found;
}

}  // namespace

std::string code_for(int major, int minor, std::string_view built) {
  const std::string capability =
      "compute capability " + std::to_string(major) + "." + std::to_string(minor);
  if (major < 8) not_supported(capability + "; this build runs from 8.0 on");
  const std::string words = std::string(built) + " ";
  const auto holds = [&](const char* code) {
    return words.find("sm_" + std::string(code) + " ") != std::string::npos;
  };
  // The code of an "a" architecture runs on its own compute capability and on no later one.
  if (major == 9 && minor == 0 && holds("90a")) return "sm90a";
  if (major == 10 && minor == 0 && holds("100a")) return "sm100a";
  if (holds("80")) return "sm80";
  not_supported(capability + "; this build holds machine code for " + std::string(built) +
                " alone: configure it with -DDROPLESS_CUDA_WANTED='80;90a;100a'");
}

const Device& device(int ordinal) {
  static std::mutex mutex;
  static std::map<int, Device> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(ordinal);
  return found != known.end() ? found->second
                              : known.emplace(ordinal, read_device(ordinal)).first->second;
}

}  // namespace dropless::cuda
