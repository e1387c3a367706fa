// SPDX-License-Identifier: Apache-2.0
// What is known about a GPU, read once.
#pragma once

#include <string>
#include <string_view>

namespace dropless::cuda {

struct Device {
  int ordinal = 0;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  // bytes, after opting in
  std::string code;                 // of this build that runs: "sm80", "sm90a", "sm100a"

  [[nodiscard]] bool runs_sm90a() const { return code == "sm90a"; }  // has wgmma and TMA
};

// The machine code that a GPU of this compute capability runs, out of those of a build: code_for(9,
// 0, "sm_80 sm_90a") is "sm90a". That of its own kind comes first, then sm_80, which every later
// GPU compiles from PTX at start. Throws Refusal (NOT_SUPPORTED) below 8.0 and where none of them
// runs.
std::string code_for(int major, int minor, std::string_view built);

// Throws Refusal (NOT_SUPPORTED) without a GPU, with a driver that is too old, for an ordinal that
// does not exist, below compute capability 8.0, and where this build holds no code for the GPU.
const Device& device(int ordinal);

}  // namespace dropless::cuda
