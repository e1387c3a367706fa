// SPDX-License-Identifier: Apache-2.0
// The registry of case families: definitions are checked when added, ids when resolved.
#include "conformance/cases/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "conformance/cases/selection.h"

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
    std::set<std::string> words;
    for (const std::string& word : parameter.words) {
      demand(made_of(word, "._+-"), family, "malformed word '" + word + "'");
      demand(words.insert(word).second, family, "word '" + word + "' twice");
    }
  }
}

std::string allowed(const Parameter& parameter) {
  if (parameter.words.empty()) return fmt::format("{}..{}", parameter.least, parameter.most);
  return fmt::format("{}", fmt::join(parameter.words, ", "));
}

std::string allowed_keys(const Family& family) {
  if (family.parameters.empty()) return "it has no keys";
  std::string out = "its keys are";
  for (const Parameter& parameter : family.parameters) out += " " + parameter.name;
  return out;
}

// Ids are compared as text, so an integer has one spelling only.
bool is_allowed(const Parameter& parameter, const std::string& value) {
  if (!parameter.words.empty()) {
    return std::find(parameter.words.begin(), parameter.words.end(), value) !=
           parameter.words.end();
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc{} && end == value.data() + value.size() &&
         std::to_string(number) == value && number >= parameter.least && number <= parameter.most;
}

CaseId resolved(const Family& family, const CaseId& given) {
  for (const auto& [key, value] : given.values) {
    const std::string& name = key;
    const bool known = std::any_of(family.parameters.begin(), family.parameters.end(),
                                   [&](const Parameter& p) { return p.name == name; });
    if (!known) {
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
  return {std::move(name), std::move(words), 0, 0, std::move(meaning)};
}

Parameter integer_parameter(std::string name, std::int64_t least, std::int64_t most,
                            std::string meaning) {
  return {std::move(name), {}, least, most, std::move(meaning)};
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
    add_losses(built);
    add_optimizer(built);
    add_layer(built);
    return built;
  }();
  return all;
}

}  // namespace dropless::conformance
