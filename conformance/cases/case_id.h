// SPDX-License-Identifier: Apache-2.0
// Case ids: `family:key=value,key=value`, stable, and their own reproducer.
//
//     grouped_gemm.wgrad:model=deepseek-v3,load=one_hot,rows=257,dtype=bf16,data=exact,seed=7
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dropless::conformance {

// A wrong use of the tool: one line that names the thing and the remedy. main prints it, exits 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Values = std::vector<std::pair<std::string, std::string>>;  // in the family's order

struct CaseId {
  std::string family;
  Values values;
  [[nodiscard]] std::string text() const;
  bool operator==(const CaseId&) const = default;
};

// Grammar only: families [a-z0-9_.]+, keys [a-z0-9_]+, values [a-z0-9._+-]+, at most 1024 bytes.
// Throws UsageError.
CaseId parse_case_id(std::string_view text);

}  // namespace dropless::conformance
