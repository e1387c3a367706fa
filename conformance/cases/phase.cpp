// SPDX-License-Identifier: Apache-2.0
// The one phase listener of the process.
#include "conformance/cases/phase.h"

namespace dropless::conformance {
namespace {

void (*listener_of_process)(std::string_view) = nullptr;

}  // namespace

void set_phase_listener(void (*listener)(std::string_view)) {
  listener_of_process = listener;
}

void announce_phase(std::string_view operation) {
  if (listener_of_process != nullptr) listener_of_process(operation);
}

}  // namespace dropless::conformance
