// SPDX-License-Identifier: Apache-2.0
// The activation of approximate inputs: value, slope and their errors.
#pragma once

#include <dropless/contract.h>

#include "tolerances/propagation.h"

namespace dropless::tolerances {

struct ActivationPoint {
  Near h;             // unweighted, with the rounding of fp32
  Near weighted;      // h * weight
  Near d_gate, d_up;  // dh * weight * derivative
};
// dh may be zero in the forward pass.
ActivationPoint activate(const dropless_profile& profile,
                         const dropless_activation_settings& settings, Near gate, Near up,
                         Near weight, Near dh);

}  // namespace dropless::tolerances
