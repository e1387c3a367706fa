// SPDX-License-Identifier: Apache-2.0
// Settings of the model as a call hands them in. A settings struct must reach its last field:
// unlike in argument structs a missing value would not mean "none" but a wrong model.
#pragma once

#include <dropless/contract.h>

#include <cstddef>

#include "reference/contract/call.h"

namespace dropless::reference::contract {

#define DROPLESS_END_OF(type, field) (offsetof(type, field) + sizeof(type::field))

inline dropless_route_settings route_settings(const dropless_route_settings* settings) {
  return completed(settings, "route settings",
                   DROPLESS_END_OF(dropless_route_settings, scaling_factor));
}

// The clamped kind alone needs limit, alpha and offset.
inline dropless_activation_settings activation_settings(
    const dropless_activation_settings* settings) {
  const auto copy = completed(settings, "activation settings",
                              DROPLESS_END_OF(dropless_activation_settings, gate_up_layout));
  if (copy.kind != DROPLESS_SWIGLU_CLAMPED) return copy;
  return completed(settings, "activation settings",
                   DROPLESS_END_OF(dropless_activation_settings, offset));
}

#undef DROPLESS_END_OF

}  // namespace dropless::reference::contract
