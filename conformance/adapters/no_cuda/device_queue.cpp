// SPDX-License-Identifier: Apache-2.0
// A suite that was built without CUDA has nothing to time.
#include "conformance/adapters/device_queue.h"

#include "conformance/adapters/device_memory.h"

namespace dropless::conformance {

std::unique_ptr<DeviceQueue> open_device_queue() {
  provide_device_memory();  // says why there is none
  return nullptr;
}

}  // namespace dropless::conformance
