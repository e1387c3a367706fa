// SPDX-License-Identifier: Apache-2.0
// The registry of case families: definitions are checked when added, ids when resolved.
#include "conformance/cases/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <set>

#include "conformance/cases/exchange/setup.h"
#include "conformance/cases/selection.h"
#include "conformance/ranks/drill.h"

namespace dropless::conformance {
namespace {

constexpr std::array all_tiers = {Tier::smoke, Tier::standard, Tier::full};
// Every call of every case is judged by these two, so every family can name them.
constexpr std::array implied_clauses = {"GENERAL-0", "GENERAL-1"};

bool made_of(std::string_view text, std::string_view extra) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           extra.find(c) != std::string_view::npos;
  });
}

void demand(bool met, const Family& family, std::string_view what) {
  if (!met) throw std::logic_error(fmt::format("case family '{}': {}", family.name, what));
}

void check(const Family& family) {
  const std::size_t dot = family.name.find('.');
  demand(made_of(family.name, "_."), family, "the name may only hold a-z, 0-9, '_' and '.'");
  demand(dot != std::string::npos && dot > 0 && dot + 1 < family.name.size(), family,
         "the name must be stage.question");
  demand(!family.purpose.empty(), family, "no purpose");
  demand(!family.clauses.empty(), family, "no clauses");
  demand(static_cast<bool>(family.select), family, "no selection");
  demand(static_cast<bool>(family.run), family, "nothing to run");
  std::set<std::string> names;
  for (const Parameter& parameter : family.parameters) {
    demand(made_of(parameter.name, "_"), family, "malformed parameter '" + parameter.name + "'");
    demand(names.insert(parameter.name).second, family, "parameter '" + parameter.name + "' twice");
    demand(!parameter.meaning.empty(), family, "parameter '" + parameter.name + "' has no meaning");
    demand(!parameter.words.empty() || parameter.least <= parameter.most, family,
           "parameter '" + parameter.name + "' allows nothing");
    demand(parameter.longest == 0 || parameter.least >= 0, family,
           "the list '" + parameter.name + "' holds negative numbers");
    std::set<std::string> words;
    for (const std::string& word : parameter.words) {
      demand(made_of(word, "._+-"), family, "malformed word '" + word + "'");
      demand(words.insert(word).second, family, "word '" + word + "' twice");
    }
  }
}

std::string allowed(const Parameter& parameter) {
  const std::string range = fmt::format("{}..{}", parameter.least, parameter.most);
  const std::string list =
      fmt::format("a list such as 3.0.17, up to {} numbers in {}", parameter.longest, range);
  std::string text;
  if (!parameter.words.empty()) {
    text = fmt::format("{}", fmt::join(parameter.words, ", "));
  } else if (parameter.longest == 0) {
    text = range;
  }
  if (parameter.longest > 0) text += (text.empty() ? "" : ", or ") + list;
  return text;
}

std::string allowed_keys(const Family& family) {
  if (family.parameters.empty()) return "it has no keys";
  std::string out = "its keys are";
  for (const Parameter& parameter : family.parameters) out += " " + parameter.name;
  return out;
}

// Ids are compared as text, so an integer has one spelling only.
bool is_integer_in(const Parameter& parameter, std::string_view value) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc{} && end == value.data() + value.size() &&
         std::to_string(number) == value && number >= parameter.least && number <= parameter.most;
}

bool is_list_of(const Parameter& parameter, std::string_view value) {
  for (std::size_t items = 1; items <= parameter.longest; ++items) {
    const std::size_t dot = value.find('.');
    if (!is_integer_in(parameter, value.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    value.remove_prefix(dot + 1);
  }
  return false;
}

bool is_allowed(const Parameter& parameter, const std::string& value) {
  const std::vector<std::string>& words = parameter.words;
  if (parameter.longest > 0 && is_list_of(parameter, value)) return true;
  if (!words.empty()) return std::find(words.begin(), words.end(), value) != words.end();
  return parameter.longest == 0 && is_integer_in(parameter, value);
}

const Parameter& any_seed() {
  static const Parameter seed =
      integer_parameter("seed", 0, std::int64_t{1} << 62, "of the random numbers");
  return seed;
}

// The seed of a family that has no such parameter stands last.
void take_extra_seed(const Family& family, const CaseId& given, CaseId& id) {
  const auto is_seed = [](const auto& pair) { return pair.first == any_seed().name; };
  const auto found = std::find_if(given.values.begin(), given.values.end(), is_seed);
  if (found == given.values.end() || std::any_of(id.values.begin(), id.values.end(), is_seed)) {
    return;
  }
  if (!is_allowed(any_seed(), found->second)) {
    throw UsageError(fmt::format("family '{}': seed={} is not allowed, one of {} is", family.name,
                                 found->second, allowed(any_seed())));
  }
  id.values.push_back(*found);
}

CaseId resolved(const Family& family, const CaseId& given) {
  for (const auto& [key, value] : given.values) {
    const std::string& name = key;
    const bool known = std::any_of(family.parameters.begin(), family.parameters.end(),
                                   [&](const Parameter& p) { return p.name == name; });
    if (!known && name != any_seed().name) {
      throw UsageError(
          fmt::format("family '{}' has no key '{}': {}", family.name, key, allowed_keys(family)));
    }
  }
  CaseId id{family.name, {}};
  for (const Parameter& parameter : family.parameters) {
    const auto found = std::find_if(given.values.begin(), given.values.end(),
                                    [&](const auto& pair) { return pair.first == parameter.name; });
    if (found == given.values.end()) {
      throw UsageError(fmt::format("family '{}' needs the key '{}' ({}): one of {}", family.name,
                                   parameter.name, parameter.meaning, allowed(parameter)));
    }
    if (!is_allowed(parameter, found->second)) {
      throw UsageError(fmt::format("family '{}': {}={} is not allowed, one of {} is", family.name,
                                   parameter.name, found->second, allowed(parameter)));
    }
    id.values.push_back(*found);
  }
  take_extra_seed(family, given, id);
  if (const std::string why = family.objection ? family.objection(id.values) : ""; !why.empty()) {
    throw UsageError(fmt::format("case {}: {}", id.text(), why));
  }
  return id;
}

}  // namespace

std::string_view name(Tier tier) {
  switch (tier) {
    case Tier::smoke:
      return "smoke";
    case Tier::standard:
      return "standard";
    case Tier::full:
      return "full";
  }
  return "unknown";
}

std::optional<Tier> tier_from(std::string_view text) {
  for (const Tier tier : all_tiers) {
    if (name(tier) == text) return tier;
  }
  return std::nullopt;
}

Parameter word_parameter(std::string name, std::vector<std::string> words, std::string meaning) {
  return {std::move(name), std::move(words), 0, 0, std::move(meaning), 0};
}

Parameter integer_parameter(std::string name, std::int64_t least, std::int64_t most,
                            std::string meaning) {
  return {std::move(name), {}, least, most, std::move(meaning), 0};
}

Parameter list_parameter(std::string name, std::int64_t least, std::int64_t most,
                         std::size_t longest, std::string meaning) {
  return {std::move(name), {}, least, most, std::move(meaning), longest};
}

std::function<std::vector<Values>(Tier)> tiers(std::vector<Values> smoke,
                                               std::vector<Values> standard,
                                               std::vector<Values> full) {
  full = without(without(std::move(full), smoke), standard);
  standard = without(std::move(standard), smoke);
  return [=](Tier tier) {
    return tier == Tier::smoke ? smoke : tier == Tier::standard ? standard : full;
  };
}

void Registry::add(Family family) {
  check(family);
  demand(find(family.name) == nullptr, family, "registered twice");
  for (const char* clause : implied_clauses) {
    if (std::find(family.clauses.begin(), family.clauses.end(), clause) == family.clauses.end()) {
      family.clauses.emplace_back(clause);
    }
  }
  families_.push_back(std::move(family));
}

const Family* Registry::find(std::string_view name) const {
  const auto found = std::find_if(families_.begin(), families_.end(),
                                  [&](const Family& family) { return family.name == name; });
  return found == families_.end() ? nullptr : &*found;
}

std::vector<CaseId> Registry::cases(Tier tier) const {
  std::vector<CaseId> out;
  for (const Family& family : families_) {
    for (const Tier step : all_tiers) {
      if (step > tier) break;
      for (const Values& values : family.select(step)) {
        try {
          out.push_back(resolved(family, {family.name, values}));
        } catch (const UsageError& error) {
          throw std::logic_error(fmt::format("tier {} selects an illegal case: {}",
                                             conformance::name(step), error.what()));
        }
      }
    }
  }
  return out;
}

CaseId Registry::resolve(std::string_view text) const {
  const CaseId given = parse_case_id(text);
  if (const Family* family = find(given.family)) return resolved(*family, given);
  // A family name that is not known: offer the families of its stage, or else the stages.
  const std::string stage = given.family.substr(0, given.family.find('.'));
  std::set<std::string> names, stages;
  for (const Family& family : families_) {
    stages.insert(family.stage());
    if (family.stage() == stage) names.insert(family.name);
  }
  if (names.empty()) {
    throw UsageError(fmt::format("no case family '{}': the stages are {}", given.family,
                                 fmt::join(stages, ", ")));
  }
  throw UsageError(fmt::format("no case family '{}': stage {} has {}", given.family, stage,
                               fmt::join(names, ", ")));
}

const Registry& registry() {
  static const Registry all = [] {
    Registry built;
    add_routing(built);
    add_permutation(built);
    add_mxfp8(built);
    add_grouped_gemm(built);
    add_activation(built);
    add_exchange(built);
    add_losses(built);
    add_optimizer(built);
    add_layer(built);
    if (std::getenv("DROPLESS_RANK_DRILL") != nullptr) add_rank_drill(built);
    return built;
  }();
  return all;
}

}  // namespace dropless::conformance
