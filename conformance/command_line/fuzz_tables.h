// SPDX-License-Identifier: Apache-2.0
// A fuzz run in words, tables and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/report/failure_text.h"
#include "conformance/runner/fuzzing.h"

namespace dropless::conformance {

std::string finding_text(const FuzzFinding& finding, const Reproduction& how);
// Every label that something was required of; families only when they are asked for, or missed.
std::string shares_text(const FuzzReport& report, bool families);
std::string last_line(const FuzzReport& report);
nlohmann::ordered_json to_json(const FuzzReport& report, const FuzzPlan& plan,
                               const std::string& implementation);

// One planted fault in one line, the case that found it in a second one.
std::string fault_text(const FuzzedFault& one);
// Per stage: faults, found, and how many cases that took.
std::string found_table(const std::vector<FuzzedFault>& all);
std::string last_line(const std::vector<FuzzedFault>& all);
nlohmann::ordered_json to_json(const std::vector<FuzzedFault>& all, const FuzzPlan& plan);

}  // namespace dropless::conformance
