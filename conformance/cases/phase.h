// SPDX-License-Identifier: Apache-2.0
// What the implementation is doing right now, so that a crash or a hang can be told by name.
//
// CaseRun announces every operation before it calls it and the empty string when the call is over.
// One listener per process; without one an announcement costs a comparison.
#pragma once

#include <string_view>

namespace dropless::conformance {

void set_phase_listener(void (*listener)(std::string_view operation));
void announce_phase(std::string_view operation);

}  // namespace dropless::conformance
