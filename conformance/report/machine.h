// SPDX-License-Identifier: Apache-2.0
// The machine that a run happened on.
#pragma once

#include <nlohmann/json.hpp>

namespace dropless::conformance {

// CPUs that this process may use (affinity, and the share that a container grants), at least 1.
int usable_cores();

// {host, cpu, cores, usable_cores, memory_mib, system, kernel}; what cannot be found is "unknown".
nlohmann::ordered_json describe_machine();

}  // namespace dropless::conformance
