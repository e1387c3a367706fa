// SPDX-License-Identifier: Apache-2.0
// What this suite is: version, commit, compiler, libraries. Written anew by every build.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dropless::conformance {

struct BuildInfo {
  std::string version;     // 0.1.0
  std::string commit;      // 12 hex digits, "-dirty" appended for changed files; "unknown"
  std::string compiler;    // "GNU 12.2.0"
  std::string build_type;  // "Release"
  std::string flags;
};

const BuildInfo& build_info();

// Hash of the text of all clauses: two results with the same one were judged by the same text.
std::string clause_set_version();

// {version, commit, contract, clauses, build{...}, libraries{...}}
nlohmann::ordered_json describe_suite();

}  // namespace dropless::conformance
