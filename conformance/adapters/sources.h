// SPDX-License-Identifier: Apache-2.0
// Implementations that other parts of the project bring along: "<prefix>:<name>" is accepted
// wherever an implementation is named, so that they run in workers like everybody else's. Planted
// faults and honest variants come in this way; the suite itself knows only what is said about them.
#pragma once

#include <dropless/contract.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

// The table lives as long as the process. Throws UsageError for an unknown name.
using ImplementationSource = std::function<const dropless_implementation*(const std::string& name)>;
// Before the first load. Throws std::logic_error when the prefix is taken.
void register_implementation_source(std::string prefix, ImplementationSource source);

// Null when `argument` has no registered prefix.
const dropless_implementation* table_from_source(const std::string& argument);

enum class Visibility { cpu, gpu, ranks };  // what it takes to see the fault
std::string_view name(Visibility visibility);

// What is known about a planted fault; loaded as "fault:<name>" when a CPU shows it.
struct FaultEntry {
  std::string name;        // "<stage>.<what goes wrong>"
  std::string provenance;  // project and number of the public report, or where it is measured
  std::string symptom, trigger;
  std::vector<std::string> clauses;  // expected to name it, the most telling one first
  Visibility visibility = Visibility::cpu;
  std::string reason;   // why a CPU with one rank cannot show it
  bool on_gpu = false;  // planted into the CUDA implementation of this build

  [[nodiscard]] std::string stage() const { return name.substr(0, name.find('.')); }
};

void register_fault_entries(std::vector<FaultEntry> entries);
const std::vector<FaultEntry>& fault_entries();

// What is known about an honest variant; loaded as "honest:<name>".
struct HonestEntry {
  std::string name;
  std::string difference;  // from the reference under the default profile
};

void register_honest_entries(std::vector<HonestEntry> entries);
const std::vector<HonestEntry>& honest_entries();

// Defined where the faults are (tests/faults) and the variants (tests/honest), called by main.
void register_planted_faults();
void register_honest_variants();

}  // namespace dropless::conformance
