// SPDX-License-Identifier: Apache-2.0
// A build without CUDA plants nothing on a GPU.
#include "tests/faults/gpu_plants.h"

namespace dropless::faults {

GpuPlant gpu_plant(const std::string&) {
  return nullptr;
}

}  // namespace dropless::faults
