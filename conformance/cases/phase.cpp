// SPDX-License-Identifier: Apache-2.0
// The one phase listener of the process.
#include "conformance/cases/phase.h"

#include "conformance/cases/ending.h"
#include "conformance/cases/phase_of_thread.h"

namespace dropless::conformance {
namespace {

void (*listener_of_process)(std::string_view) = nullptr;
thread_local std::string operation_inside;

}  // namespace

void set_phase_listener(void (*listener)(std::string_view)) {
  listener_of_process = listener;
}

void announce_phase(std::string_view operation) {
  if (!operation.starts_with('!') && !operation.starts_with('~')) operation_inside = operation;
  if (listener_of_process != nullptr) listener_of_process(operation);
}

bool announce_end(std::string_view operations) {
  if (listener_of_process == nullptr) return false;
  announce_phase("~" + std::string(operations));
  return true;
}

const std::string& operation_of_thread() {
  return operation_inside;
}

}  // namespace dropless::conformance
