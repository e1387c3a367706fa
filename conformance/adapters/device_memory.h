// SPDX-License-Identifier: Apache-2.0
// The GPU that this process judges on: its memory for Buffers, its queue for dropless_call::stream,
// and what it is. A build without CUDA has the same functions and says that there is none.
//
//     if (const std::string why = no_gpu_because(); !why.empty()) skip(why);
//     provide_device_memory();               // Buffers in DROPLESS_CUDA_DEVICE work from now on
#pragma once

#include <dropless/contract.h>

#include <nlohmann/json.hpp>
#include <string>

namespace dropless::conformance {

// Why nothing can be judged in CUDA memory here, in one clause; empty when it can.
std::string no_gpu_because();

// Gives Buffers access to the memory of CUDA device 0 (CUDA_VISIBLE_DEVICES chooses which one that
// is). Throws UsageError when there is none. May be called again.
//
// Buffers of one case share an arena, since an allocation costs as much as a small case; with
// DROPLESS_DEVICE_ARENA=0 in the environment each has its own, so that tools which watch
// allocations see every access outside of them.
// This process waits for the GPU without using a core; with DROPLESS_DEVICE_WAIT=spin it polls,
// which answers sooner while there are more cores than workers.
void provide_device_memory();

// {gpu, compute_capability, multiprocessors, memory_mib, driver, runtime} of that device; null when
// there is none.
nlohmann::ordered_json describe_device();

// The built-in implementation for CUDA. Throws UsageError where it cannot run.
const dropless_implementation& cuda_implementation();

}  // namespace dropless::conformance
