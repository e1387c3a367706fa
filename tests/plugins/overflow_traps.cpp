// SPDX-License-Identifier: Apache-2.0
// The exchange of the CPU implementation under the overflow policy trap: an overflow ends the
// process. With ONLY_DECLARED an overflow is reported as an error, whatever the profile says.
#include <cstdint>

#include "optimized/cpu/exchange/implementation.h"

extern "C" DROPLESS_EXPORT const dropless_implementation* dropless_get_implementation(
    std::uint32_t) {
  static dropless_profile profile{};
  static dropless_implementation table{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
#ifdef ONLY_DECLARED
  table = *dropless::cpu::exchange::implementation(profile);
  profile.overflow_policy = DROPLESS_OVERFLOW_TRAP;
  table.profile = &profile;
#else
  profile.overflow_policy = DROPLESS_OVERFLOW_TRAP;
  table = *dropless::cpu::exchange::implementation(profile);
#endif
  return &table;
}
