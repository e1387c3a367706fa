// SPDX-License-Identifier: Apache-2.0
// A case family: one question put to an implementation, with the parameters that vary.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "conformance/cases/case_id.h"

namespace dropless::conformance {

class CaseRun;

enum class Tier { smoke, standard, full };  // each contains the ones before it
std::string_view name(Tier tier);
std::optional<Tier> tier_from(std::string_view name);

// A parameter is a word out of `words`, or, when that is empty, an integer in [least, most]. Where
// `longest` is not 0 a list of 1 to `longest` such integers will do as well, or instead: "3.0.17".
struct Parameter {
  std::string name;
  std::vector<std::string> words;
  std::int64_t least = 0, most = 0;
  std::string meaning;
  std::size_t longest = 0;
};

struct Family {
  std::string name;                  // "grouped_gemm.wgrad"; the part before the dot is the stage
  std::string purpose;               // one sentence: what a pass proves, what it leaves out
  std::vector<std::string> clauses;  // every clause that a failure of this family can name
  std::vector<Parameter> parameters;
  // The cases that this tier adds to the tiers below it, in a stable order.
  std::function<std::vector<Values>(Tier)> select;
  std::function<void(CaseRun&)> run;
  // Why these values, each of them allowed, do not go together; empty: they do. Optional.
  std::function<std::string(const Values&)> objection = {};
  bool waits = false;  // its cases take their time on purpose (a rank that is late, a time-out)

  [[nodiscard]] std::string stage() const { return name.substr(0, name.find('.')); }
};

// Parameters and selections in one line each.
Parameter word_parameter(std::string name, std::vector<std::string> words, std::string meaning);
Parameter integer_parameter(std::string name, std::int64_t least, std::int64_t most,
                            std::string meaning);
Parameter list_parameter(std::string name, std::int64_t least, std::int64_t most,
                         std::size_t longest, std::string meaning);
// One list per tier; what a lower tier has already is left out.
std::function<std::vector<Values>(Tier)> tiers(std::vector<Values> smoke,
                                               std::vector<Values> standard,
                                               std::vector<Values> full = {});

class Registry {
 public:
  void add(Family family);  // throws std::logic_error on a duplicate or malformed family
  [[nodiscard]] const std::vector<Family>& families() const { return families_; }
  [[nodiscard]] const Family* find(std::string_view name) const;

  // All cases of a tier (with the lower tiers), families in order of registration.
  [[nodiscard]] std::vector<CaseId> cases(Tier tier) const;
  // Parses and checks names, values and order; fills nothing in. Every family takes a `seed`: one
  // that has no such parameter draws other numbers with it. Throws UsageError that lists what would
  // have been allowed.
  [[nodiscard]] CaseId resolve(std::string_view text) const;

 private:
  std::vector<Family> families_;
};

// Every family of the suite. Built once.
const Registry& registry();

// One function per stage, defined in cases/<stage>.cpp.
void add_routing(Registry& registry);
void add_permutation(Registry& registry);
void add_mxfp8(Registry& registry);
void add_grouped_gemm(Registry& registry);
void add_activation(Registry& registry);
void add_losses(Registry& registry);
void add_optimizer(Registry& registry);
void add_layer(Registry& registry);

}  // namespace dropless::conformance
