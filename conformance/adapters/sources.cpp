// SPDX-License-Identifier: Apache-2.0
// The registered sources, the list of faults and that of honest variants.
#include "conformance/adapters/sources.h"

#include <map>
#include <stdexcept>
#include <utility>

namespace dropless::conformance {
namespace {

std::map<std::string, ImplementationSource>& sources() {
  static std::map<std::string, ImplementationSource> registered;
  return registered;
}

std::vector<HonestEntry>& variants_of_process() {
  static std::vector<HonestEntry> entries;
  return entries;
}

std::vector<FaultEntry>& entries_of_process() {
  static std::vector<FaultEntry> entries;
  return entries;
}

}  // namespace

void register_implementation_source(std::string prefix, ImplementationSource source) {
  if (!sources().emplace(prefix, std::move(source)).second) {
    throw std::logic_error("implementation source '" + prefix + "' is registered twice");
  }
}

const dropless_implementation* table_from_source(const std::string& argument) {
  const std::size_t colon = argument.find(':');
  if (colon == std::string::npos) return nullptr;
  const auto source = sources().find(argument.substr(0, colon));
  return source == sources().end() ? nullptr : source->second(argument.substr(colon + 1));
}

std::string_view name(Visibility visibility) {
  switch (visibility) {
    case Visibility::cpu:
      return "cpu";
    case Visibility::gpu:
      return "gpu";
    case Visibility::ranks:
      return "ranks";
  }
  return "unknown";
}

void register_fault_entries(std::vector<FaultEntry> entries) {
  entries_of_process() = std::move(entries);
}

const std::vector<FaultEntry>& fault_entries() {
  return entries_of_process();
}

void register_honest_entries(std::vector<HonestEntry> entries) {
  variants_of_process() = std::move(entries);
}

const std::vector<HonestEntry>& honest_entries() {
  return variants_of_process();
}

}  // namespace dropless::conformance
