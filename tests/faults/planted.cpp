// SPDX-License-Identifier: Apache-2.0
// The planted table, and how the tool finds it by name.
#include "tests/faults/planted.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>

#include "conformance/adapters/device_memory.h"
#include "conformance/cases/case_id.h"
#include "reference/implementation.h"
#include "tests/faults/gpu_plants.h"
#include "tests/faults/kept_clauses.h"

namespace dropless::faults {
namespace {

dropless_profile changed(dropless_profile profile, const ProfileChange& change) {
  if (change) change(profile);
  return profile;
}

void check(const Fault& fault, std::set<std::string>& names) {
  const bool complete = fault.name.find('.') != std::string::npos && !fault.provenance.empty() &&
                        !fault.symptom.empty() && !fault.trigger.empty() &&
                        (fault.visibility == Visibility::cpu) == (fault.plant != nullptr) &&
                        (fault.plant != nullptr ? !fault.clauses.empty() : !fault.reason.empty());
  if (!complete) throw std::logic_error("fault '" + fault.name + "' is incomplete");
  if (!names.insert(fault.name).second) {
    throw std::logic_error("fault '" + fault.name + "' occurs twice");
  }
}

const Planted& planted_named(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Planted>> planted;
  const std::lock_guard lock(mutex);
  for (const Fault& fault : all_faults()) {
    if (fault.name != name) continue;
    auto& one = planted[name];
    if (one != nullptr) return *one;
    if (fault.plant != nullptr) {
      one = std::make_unique<Planted>(fault);
    } else if (const GpuPlant plant = gpu_plant(name)) {
      one = std::make_unique<Planted>("fault " + name, "after " + fault.provenance,
                                      conformance::cuda_implementation(), plant);
    } else {
      throw conformance::UsageError("fault " + name + " cannot be planted here: " + fault.reason);
    }
    return *one;
  }
  throw conformance::UsageError("no fault '" + name + "'; see dropless faults --list");
}

// What a fault is compared with: the same declared profile, and nothing planted.
const dropless_implementation* control_table(const std::string& name) {
  if (planted_named(name).table().memory_space != DROPLESS_HOST) {
    return &conformance::cuda_implementation();
  }
  return &reference::implementation(*planted_named(name).table().profile);
}

const dropless_implementation* planted_table(const std::string& name) {
  return &planted_named(name).table();
}

}  // namespace

const Table& correct(const ProfileChange& change) {
  return reference::implementation(changed(*reference::implementation().profile, change));
}

Planted::Planted(const Fault& fault)
    : Planted("fault " + fault.name, "after " + fault.provenance, correct(), fault.plant) {}

Planted::Planted(std::string name, std::string build, const Table& base,
                 const std::function<void(Planted&)>& plant)
    : name_(std::move(name)), build_(std::move(build)), profile_(*base.profile), base_(base) {
  table_ = base_;
  table_.name = name_.c_str();
  table_.build = build_.c_str();
  table_.profile = &profile_;
  table_.context = this;
#define DROPLESS_PASS_ON(name, args)                              \
  if (base_.name != nullptr) {                                    \
    chains_.name = [this](dropless_call* call, args* arguments) { \
      return base_.name(base_.context, call, arguments);          \
    };                                                            \
    table_.name = Operation<&Table::name>::enter;                 \
  }
  DROPLESS_OPERATIONS(DROPLESS_PASS_ON)
#undef DROPLESS_PASS_ON
  plant(*this);
}

void Planted::follow(const dropless_profile& profile) {
  base_ = reference::implementation(profile);
}

void Planted::declare(const ProfileChange& change) {
  profile_ = changed(profile_, change);
  follow(profile_);
}

void Planted::behave_as(const ProfileChange& change) {
  follow(changed(profile_, change));
}

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> faults = [] {
    std::vector<Fault> all;
    add_routing(all);
    add_permutation(all);
    add_mxfp8(all);
    add_grouped_gemm(all);
    add_activation(all);
    add_losses(all);
    add_optimizer(all);
    add_layer(all);
    add_exchange(all);
    add_training(all);
    add_later(all);
    add_repeated(all);
    std::set<std::string> names;
    for (const Fault& fault : all) check(fault, names);
    return all;
  }();
  return faults;
}

}  // namespace dropless::faults

namespace dropless::conformance {

void register_planted_faults() {
  std::vector<FaultEntry> entries;
  for (const faults::Fault& fault : faults::all_faults()) {
    entries.push_back({fault.name, fault.provenance, fault.symptom, fault.trigger, fault.clauses,
                       fault.visibility, fault.reason, faults::gpu_plant(fault.name) != nullptr});
  }
  register_fault_entries(std::move(entries));
  register_clause_reasons(faults::kept_clauses());
  register_implementation_source("fault", faults::planted_table);
  register_implementation_source("control", faults::control_table);
}

}  // namespace dropless::conformance
