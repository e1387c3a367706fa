// SPDX-License-Identifier: Apache-2.0
// An implementation in words: what the results file, `dropless info` and a resumed run compare.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/adapters/load.h"

namespace dropless::conformance {

// Names of the operations in the order of the table; only those with an entry.
std::vector<std::string> offered_operations(const dropless_implementation& table);
std::vector<std::string> all_operations();

// {argument, name, version, build, memory_space, contract_version, fingerprint, profile{},
// offers[]}
nlohmann::ordered_json describe(const LoadedImplementation& implementation);

}  // namespace dropless::conformance
