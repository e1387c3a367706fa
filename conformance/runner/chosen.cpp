// SPDX-License-Identifier: Apache-2.0
// From wishes to cases.
#include "conformance/runner/chosen.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <set>

#include "conformance/cases/models.h"
#include "conformance/cases/selection.h"
#include "conformance/clauses/clauses.h"
#include "conformance/ranks/rank_group.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {
namespace {

using Strings = std::vector<std::string>;

bool contains(const Strings& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

void check_known(std::string_view kind, const Strings& wanted, const Strings& known) {
  for (const std::string& one : wanted) {
    if (contains(known, one)) continue;
    throw UsageError(
        fmt::format("no {} '{}'; choose one of {}", kind, one, fmt::join(known, ", ")));
  }
}

Strings stages_of(const Registry& registry) {
  Strings stages;
  for (const Family& family : registry.families()) {
    if (!contains(stages, family.stage())) stages.push_back(family.stage());
  }
  return stages;
}

void check_names(const Registry& registry, const Wishes& wishes) {
  check_known("stage", wishes.stages, stages_of(registry));
  Strings model_names;
  for (const Model& model : models()) model_names.push_back(model.name);
  check_known("model", wishes.models, model_names);
  for (const std::string& id : wishes.clauses) {
    if (find_clause(id) == nullptr) {
      throw UsageError(fmt::format("no clause '{}'; see dropless list --clauses", id));
    }
  }
}

// "2/5" to (1, 5): counted from 0.
std::pair<std::size_t, std::size_t> shard_from(const std::string& text) {
  std::size_t part = 0, parts = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, part);
  const bool slash = first.ec == std::errc{} && first.ptr != end && *first.ptr == '/';
  const auto second = slash ? std::from_chars(first.ptr + 1, end, parts)
                            : std::from_chars_result{end, std::errc::invalid_argument};
  if (second.ec != std::errc{} || second.ptr != end || part < 1 || part > parts) {
    throw UsageError(fmt::format(
        "shard '{}' is not i/n with 1 <= i <= n; write 1/4 for the first quarter", text));
  }
  return {part - 1, parts};
}

Strings lines_of_batch(const std::string& path) {
  std::ifstream file(path);
  Strings lines;
  for (std::string line; std::getline(file, line);) {
    line.erase(std::min(line.find('#'), line.size()));
    line.erase(0, line.find_first_not_of(" \t\r"));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    lines.push_back(line);  // empty ones too: their number is in the messages
  }
  if (!file.eof())
    throw UsageError(fmt::format(
        "batch file {} cannot be read; give a text file with one case id per line", path));
  return lines;
}

class Chooser {
 public:
  Chooser(const Registry& registry, const Wishes& wishes) : registry_(registry), wishes_(wishes) {}

  std::vector<CaseId> choose() {
    check_names(registry_, wishes_);
    for (const std::string& name : wishes_.ids) add_named(name);
    if (!wishes_.batch.empty()) add_batch();
    if (wishes_.ids.empty() && wishes_.batch.empty()) cases_ = tier_cases();
    keep("--stage", wishes_.stages,
         [&](const CaseId& id) { return contains(wishes_.stages, stage_of(id)); });
    keep("--model", wishes_.models,
         [&](const CaseId& id) { return contains(wishes_.models, model_of(id)); });
    keep("--clause", wishes_.clauses, [&](const CaseId& id) { return names_a_clause(id); });
    keep("--filter", wishes_.filters, [&](const CaseId& id) { return matches_a_filter(id); });
    take_shard();
    return std::move(cases_);
  }

 private:
  void add_named(const std::string& text) {
    const Family* family = registry_.find(text);
    if (family == nullptr || family->parameters.empty()) {
      const CaseId id = registry_.resolve(text);
      check_ranks(id);
      add(id);
      return;
    }
    check_collective(*family);
    for (const CaseId& id : tier_cases()) {
      if (id.family == family->name) add(id);
    }
  }

  void check_collective(const Family& family) const {
    if (wishes_.ranks == 0 || is_collective(family)) return;
    throw UsageError(fmt::format(
        "{} has no cases over ranks; run it without --ranks and without a launcher", family.name));
  }

  void check_ranks(const CaseId& id) const {
    if (wishes_.ranks == 0) return;
    check_collective(*registry_.find(id.family));
    const std::string& ranks = value_of(id.values, "ranks");
    if (ranks == std::to_string(wishes_.ranks)) return;
    throw UsageError(
        fmt::format("case {} is for {} ranks and this run has {}; run it with --ranks "
                    "{}, or without --ranks over threads",
                    id.text(), ranks, wishes_.ranks, ranks));
  }

  // Whether the tier's case belongs to a run of so many ranks.
  [[nodiscard]] bool fits(const CaseId& id) const {
    if (wishes_.ranks == 0) return true;
    return is_collective(*registry_.find(id.family)) &&
           value_of(id.values, "ranks") == std::to_string(wishes_.ranks);
  }

  void add_batch() {
    const Strings lines = lines_of_batch(wishes_.batch);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].empty()) continue;
      try {
        add_named(lines[i]);
      } catch (const UsageError& error) {
        throw UsageError(fmt::format("{}, line {}: {}", wishes_.batch, i + 1, error.what()));
      }
    }
    if (cases_.empty())
      throw UsageError(
          fmt::format("batch file {} names no case; write one id per line", wishes_.batch));
  }

  void add(const CaseId& id) {
    if (seen_.insert(id.text()).second) cases_.push_back(id);
  }

  const std::vector<CaseId>& tier_cases() {
    if (!of_tier_.empty()) return of_tier_;
    of_tier_ = registry_.cases(wishes_.tier);
    std::erase_if(of_tier_, [&](const CaseId& id) { return !fits(id); });
    if (of_tier_.empty() && wishes_.ranks > 0) {
      throw UsageError(
          fmt::format("tier {} has no cases over {} ranks; choose another --ranks or a "
                      "higher --tier",
                      name(wishes_.tier), wishes_.ranks));
    }
    return of_tier_;
  }

  void keep(std::string_view option, const Strings& wish,
            const std::function<bool(const CaseId&)>& wanted) {
    if (!wish.empty()) {
      std::erase_if(cases_, [&](const CaseId& id) { return !wanted(id); });
    }
    if (!cases_.empty()) return;
    const bool pattern = option == "--filter" && wish.size() == 1 &&
                         wish[0].find_first_of("*?") == std::string::npos;
    if (wish.empty())
      throw UsageError(
          fmt::format("tier {} has no cases; choose a higher --tier", name(wishes_.tier)));
    throw UsageError(fmt::format(
        "no case of tier {} is left by {} {}; {}", name(wishes_.tier), option, fmt::join(wish, " "),
        pattern ? fmt::format("a pattern has to match the whole id: '*{}*'", wish[0])
                : "see dropless list, or choose a higher --tier"));
  }

  [[nodiscard]] bool names_a_clause(const CaseId& id) const {
    const Strings& clauses = registry_.find(id.family)->clauses;
    return std::any_of(wishes_.clauses.begin(), wishes_.clauses.end(),
                       [&](const std::string& wanted) { return contains(clauses, wanted); });
  }

  [[nodiscard]] bool matches_a_filter(const CaseId& id) const {
    const std::string text = id.text();
    return std::any_of(
        wishes_.filters.begin(), wishes_.filters.end(),
        [&](const std::string& pattern) { return fnmatch(pattern.c_str(), text.c_str(), 0) == 0; });
  }

  void take_shard() {
    if (wishes_.shard.empty()) return;
    const auto [part, parts] = shard_from(wishes_.shard);
    std::vector<CaseId> mine;
    for (std::size_t i = part; i < cases_.size(); i += parts) mine.push_back(cases_[i]);
    if (mine.empty()) {
      throw UsageError(fmt::format("shard {} of {} cases is empty; use fewer shards", wishes_.shard,
                                   cases_.size()));
    }
    cases_ = std::move(mine);
  }

  const Registry& registry_;
  const Wishes& wishes_;
  std::vector<CaseId> cases_, of_tier_;
  std::set<std::string> seen_;
};

}  // namespace

nlohmann::ordered_json to_json(const Wishes& wishes) {
  nlohmann::ordered_json json{{"ids", wishes.ids},         {"batch", wishes.batch},
                              {"filters", wishes.filters}, {"stages", wishes.stages},
                              {"models", wishes.models},   {"clauses", wishes.clauses},
                              {"tier", name(wishes.tier)}, {"shard", wishes.shard}};
  if (wishes.ranks > 0) json["ranks"] = wishes.ranks;
  return json;
}

Wishes wishes_from(const nlohmann::ordered_json& json) {
  Wishes wishes;
  wishes.ids = json.at("ids").get<Strings>();
  wishes.batch = json.at("batch");
  wishes.filters = json.at("filters").get<Strings>();
  wishes.stages = json.at("stages").get<Strings>();
  wishes.models = json.at("models").get<Strings>();
  wishes.clauses = json.at("clauses").get<Strings>();
  wishes.tier = tier_from(json.at("tier").get<std::string>()).value();
  wishes.shard = json.at("shard");
  wishes.ranks = json.value("ranks", 0);
  return wishes;
}

std::vector<CaseId> chosen_cases(const Registry& registry, const Wishes& wishes) {
  return Chooser(registry, wishes).choose();
}

}  // namespace dropless::conformance
