// SPDX-License-Identifier: Apache-2.0
// A fault from the public record, and the way to plant it into a correct implementation.
//
//     faults.push_back({
//         .name = "routing.renormalise_flag_ignored",
//         .provenance = "flashinfer 2889",
//         .symptom = "weights are always renormalised",
//         .trigger = "a model without renormalisation",
//         .clauses = {"ROUTING-6c"},
//         .plant = [](Planted& planted) {
//           planted.before<&Table::route_forward>([](auto& a) { ... });
//         }});
//
// `dropless run --implementation fault:routing.renormalise_flag_ignored` runs it.
#pragma once

#include <string>
#include <vector>

#include "conformance/adapters/sources.h"

namespace dropless::faults {

using conformance::Visibility;
class Planted;

struct Fault {
  std::string name;        // "<stage>.<what goes wrong>"
  std::string provenance;  // project and number
  std::string symptom, trigger;
  std::vector<std::string> clauses;   // expected to name it, the most telling one first
  void (*plant)(Planted&) = nullptr;  // null: no CPU with one rank shows it
  Visibility visibility = Visibility::cpu;
  std::string reason = {};  // why not, where plant is null
};

// A fault in one call: add(name, provenance, symptom, trigger, clauses, plant).
inline auto adder(std::vector<Fault>& faults) {
  return [&faults](const char* name, const char* provenance, const char* symptom,
                   const char* trigger, std::vector<std::string> clauses, void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = std::move(clauses),
                      .plant = plant});
  };
}

// Every fault, stage by stage. Throws std::logic_error when a name occurs twice or an entry is
// incomplete.
const std::vector<Fault>& all_faults();

// One function per stage or part of a stage.
void add_routing(std::vector<Fault>& faults);
void add_permutation(std::vector<Fault>& faults);
void add_mxfp8(std::vector<Fault>& faults);
void add_grouped_gemm(std::vector<Fault>& faults);
void add_activation(std::vector<Fault>& faults);
void add_losses(std::vector<Fault>& faults);
void add_optimizer(std::vector<Fault>& faults);
void add_layer(std::vector<Fault>& faults);
void add_exchange(std::vector<Fault>& faults);
void add_training(std::vector<Fault>& faults);
// Invented after the suite, over all stages.
void add_later(std::vector<Fault>& faults);
// Of the kinds that those showed the suite to miss.
void add_repeated(std::vector<Fault>& faults);

}  // namespace dropless::faults
