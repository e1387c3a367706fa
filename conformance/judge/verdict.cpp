// SPDX-License-Identifier: Apache-2.0
// Names of the statuses, and which of them may stand in a good run.
#include "conformance/judge/verdict.h"

#include <array>
#include <stdexcept>

namespace dropless::conformance {

namespace {
constexpr std::array<std::string_view, 13> names = {
    "pass",  "fail",    "mistrusted", "not_supported", "skipped_by_tier", "blocked",       "waived",
    "flaky", "timeout", "crash",      "device_lost",   "resource",        "internal_error"};
static_assert(names.size() == static_cast<std::size_t>(Status::internal_error) + 1);
}  // namespace

std::string_view name(Status status) {
  const auto index = static_cast<std::size_t>(status);
  if (index >= names.size()) throw std::logic_error("name: not a status");
  return names[index];
}

std::optional<Status> status_from(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Status>(i);
  }
  return std::nullopt;
}

bool acceptable(Status status) {
  switch (status) {
    case Status::pass:
    case Status::not_supported:
    case Status::skipped_by_tier:
    case Status::waived:
      return true;
    // A closed list in both directions: a new status must be put on one side.
    case Status::fail:
    case Status::mistrusted:
    case Status::blocked:
    case Status::flaky:
    case Status::timeout:
    case Status::crash:
    case Status::device_lost:
    case Status::resource:
    case Status::internal_error:
      return false;
  }
  return false;
}

}  // namespace dropless::conformance
