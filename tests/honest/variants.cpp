// SPDX-License-Identifier: Apache-2.0
// The list of honest variants, and how the tool finds one by name.
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>

#include "conformance/adapters/sources.h"
#include "conformance/cases/case_id.h"
#include "optimized/cpu/implementation.h"
#include "tests/honest/variant.h"

namespace dropless::honest {
namespace {

const Table& base_of(const Variant& variant) {
  return variant.base == Base::cpu ? cpu::implementation() : faults::correct();
}

const dropless_implementation* variant_table(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Planted>> made;
  const std::lock_guard lock(mutex);
  for (const Variant& variant : all_variants()) {
    if (variant.name != name) continue;
    auto& one = made[name];
    if (one == nullptr) {
      one = std::make_unique<Planted>("honest " + name, variant.difference, base_of(variant),
                                      variant.plant);
    }
    return &one->table();
  }
  throw conformance::UsageError("no honest variant '" + name + "'; see dropless honest --list");
}

}  // namespace

const std::vector<Variant>& all_variants() {
  static const std::vector<Variant> variants = [] {
    std::vector<Variant> all;
    add_accumulators(all);
    add_threads(all);
    add_profiles(all);
    add_arithmetic(all);
    std::set<std::string> names;
    for (const Variant& variant : all) {
      if (!names.insert(variant.name).second) {
        throw std::logic_error("honest variant '" + variant.name + "' occurs twice");
      }
    }
    return all;
  }();
  return variants;
}

}  // namespace dropless::honest

namespace dropless::conformance {

void register_honest_variants() {
  std::vector<HonestEntry> entries;
  for (const honest::Variant& variant : honest::all_variants()) {
    entries.push_back({variant.name, variant.difference});
  }
  register_honest_entries(std::move(entries));
  register_implementation_source("honest", honest::variant_table);
}

}  // namespace dropless::conformance
