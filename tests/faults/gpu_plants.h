// SPDX-License-Identifier: Apache-2.0
// Faults that are planted into the CUDA implementation, by the name of their entry in the list.
#pragma once

#include <string>

#include "tests/faults/planted.h"

namespace dropless::faults {

using GpuPlant = void (*)(Planted&);
// Null where this fault is not planted, or where the build has no CUDA.
GpuPlant gpu_plant(const std::string& name);

}  // namespace dropless::faults
