// SPDX-License-Identifier: Apache-2.0
// The suite in words. DROPLESS_BUILD_INFO comes from cmake/WriteBuildInfo.cmake.
#include "conformance/report/build_info.h"

#include <dropless/contract.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>

#include "conformance/adapters/fingerprint.h"
#include "conformance/clauses/clauses.h"
#include "dropless_build_info.h"

namespace dropless::conformance {

const BuildInfo& build_info() {
  static const BuildInfo info{DROPLESS_BUILD_VERSION, DROPLESS_BUILD_COMMIT,
                              DROPLESS_BUILD_COMPILER, DROPLESS_BUILD_TYPE, DROPLESS_BUILD_FLAGS};
  return info;
}

std::string clause_set_version() {
  std::string all;
  for (const Clause& clause : clauses()) {
    for (const std::string& part : {clause.id, clause.kind, clause.accuracy_class, clause.text}) {
      all.append(part).push_back('\0');
    }
  }
  return hexadecimal(fingerprint_of(all));
}

nlohmann::ordered_json describe_suite() {
  const BuildInfo& info = build_info();
  return {
      {"version", info.version},
      {"commit", info.commit},
      {"contract", fmt::format("{}.{}", DROPLESS_CONTRACT_MAJOR, DROPLESS_CONTRACT_MINOR)},
      {"clauses", clause_set_version()},
      {"build", {{"compiler", info.compiler}, {"type", info.build_type}, {"flags", info.flags}}},
      {"libraries",
       {{"libc", gnu_get_libc_version()},
        {"fmt",
         fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
        {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                      NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)}}}};
}

}  // namespace dropless::conformance
