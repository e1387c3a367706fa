// SPDX-License-Identifier: Apache-2.0
// A suite that was built without CUDA.
#include "conformance/adapters/device_memory.h"

#include "conformance/cases/case_id.h"

namespace dropless::conformance {
namespace {

[[noreturn]] void refuse() {
  throw UsageError(no_gpu_because() + "; configure on a machine with nvcc (DROPLESS_CUDA=ON)");
}

}  // namespace

std::string no_gpu_because() {
  return "this suite was built without CUDA";
}
void provide_device_memory() {
  refuse();
}
nlohmann::ordered_json describe_device() {
  return nullptr;
}
const dropless_implementation& cuda_implementation() {
  refuse();
}

}  // namespace dropless::conformance
