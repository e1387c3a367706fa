// SPDX-License-Identifier: Apache-2.0
// An operation that throws instead of returning a status.
#include <dropless/contract.h>

#include <stdexcept>

namespace {

dropless_status permute_plan(void*, dropless_call*, dropless_permute_plan_args*) {
  throw std::runtime_error("out of luck");
}

}  // namespace

extern "C" DROPLESS_EXPORT const dropless_implementation* dropless_get_implementation(
    std::uint32_t) {
  static dropless_profile profile{};
  static dropless_implementation table{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  table.struct_size = sizeof table;
  table.contract_version = DROPLESS_CONTRACT_VERSION;
  table.name = "throws";
  table.profile = &profile;
  table.permute_plan = permute_plan;
  return &table;
}
