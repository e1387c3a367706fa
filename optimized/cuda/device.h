// SPDX-License-Identifier: Apache-2.0
// What is known about a GPU, read once.
#pragma once

#include <string>

namespace dropless::cuda {

struct Device {
  int ordinal = 0;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  // bytes, after opting in
  std::string code;                 // whose machine code runs: "sm80", "sm90a", "sm100a"

  [[nodiscard]] bool is_hopper() const { return major == 9 && minor == 0; }
  [[nodiscard]] bool is_blackwell() const { return major == 10 && minor == 0; }
};

// Throws Refusal (NOT_SUPPORTED) without a GPU, with a driver that is too old, for an ordinal that
// does not exist, and below compute capability 8.0.
const Device& device(int ordinal);

}  // namespace dropless::cuda
