// SPDX-License-Identifier: Apache-2.0
// From the table to JSON.
#include "conformance/adapters/describe.h"

#include <fmt/format.h>

#include "conformance/adapters/device_memory.h"
#include "conformance/adapters/fingerprint.h"
#include "conformance/adapters/profile_check.h"

namespace dropless::conformance {
namespace {

std::string text_or(const char* text, const char* otherwise) {
  return text != nullptr && *text != '\0' ? text : otherwise;
}

}  // namespace

std::vector<std::string> offered_operations(const dropless_implementation& table) {
  std::vector<std::string> names;
#define DROPLESS_OFFERED(operation, args) \
  if (table.operation != nullptr) names.emplace_back(#operation);
  DROPLESS_OPERATIONS(DROPLESS_OFFERED)
#undef DROPLESS_OFFERED
  return names;
}

std::vector<std::string> all_operations() {
  std::vector<std::string> names;
#define DROPLESS_NAME(operation, args) names.emplace_back(#operation);
  DROPLESS_OPERATIONS(DROPLESS_NAME)
#undef DROPLESS_NAME
  return names;
}

nlohmann::ordered_json describe(const LoadedImplementation& implementation) {
  const dropless_implementation& table = implementation.table();
  const dropless_profile profile = completed(*table.profile);
  nlohmann::ordered_json fields;
  for (const ProfileField& field : profile_fields()) {
    fields[field.name] = word_of(field, profile.*field.member);
  }
  nlohmann::ordered_json described = {
      {"argument", implementation.argument()},
      {"name", text_or(table.name, "unnamed")},
      {"version", text_or(table.version, "unknown")},
      {"build", text_or(table.build, "unknown")},
      {"memory_space", table.memory_space == DROPLESS_HOST ? "host" : "cuda"},
      {"contract_version",
       fmt::format("{}.{}", table.contract_version / 1000, table.contract_version % 1000)},
      {"fingerprint", hexadecimal(implementation.fingerprint())},
      {"profile", fields},
      {"offers", offered_operations(table)}};
  if (table.memory_space == DROPLESS_CUDA_DEVICE) described["device"] = describe_device();
  return described;
}

}  // namespace dropless::conformance
