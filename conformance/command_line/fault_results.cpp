// SPDX-License-Identifier: Apache-2.0
// JSON of the kill score, there and back.
#include "conformance/command_line/fault_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>

namespace dropless::conformance {
namespace {

constexpr Depth depths[] = {Depth::first_kill, Depth::alone, Depth::two_clauses, Depth::every_case};

nlohmann::ordered_json to_json(const FaultEntry& fault) {
  nlohmann::ordered_json one = {{"fault", fault.name},
                                {"stage", fault.stage()},
                                {"provenance", fault.provenance},
                                {"symptom", fault.symptom},
                                {"trigger", fault.trigger},
                                {"clauses", fault.clauses},
                                {"visibility", name(fault.visibility)}};
  if (!fault.reason.empty()) one["reason"] = fault.reason;
  return one;
}

void add_hunt(nlohmann::ordered_json& one, const Hunt& hunt) {
  one["killed"] = hunt.killer.has_value();
  one["tier"] = name(hunt.tier);
  one["cases"] = hunt.cases;
  one["not_judged"] = hunt.not_judged;
  one["accusations"] = hunt.accusations;
  one["seconds"] = hunt.seconds;
  if (!hunt.killer) return;
  one["killed_by"] = hunt.clause;
  one["named"] = hunt.named;
  one["case"] = hunt.killer->id.text();
  one["seen_by"] = hunt.clauses;
}

Hunt hunt_from(const FaultEntry& fault, const nlohmann::ordered_json& one) {
  Hunt hunt;
  hunt.fault = fault;
  const std::string tier = one.at("tier");
  hunt.tier = tier_from(tier).value_or(Tier::full);
  hunt.cases = one.at("cases"), hunt.not_judged = one.at("not_judged");
  hunt.accusations = one.at("accusations"), hunt.seconds = one.at("seconds");
  if (!one.at("killed").get<bool>()) return hunt;
  hunt.clause = one.at("killed_by"), hunt.named = one.at("named");
  hunt.clauses = one.at("seen_by").get<std::set<std::string>>();
  hunt.killer.emplace();
  hunt.killer->id = parse_case_id(one.at("case").get<std::string>());
  return hunt;
}

struct Part {
  std::string commit, depth;
  std::vector<std::string> tiers;
  std::map<std::string, nlohmann::ordered_json> faults;
};

Part part_of(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw UsageError(fmt::format("{} cannot be read", file));
  try {
    const auto json = nlohmann::ordered_json::parse(stream);
    Part part{json.at("commit"), json.at("depth"), json.at("tiers"), {}};
    for (const auto& one : json.at("faults")) part.faults.emplace(one.at("fault"), one);
    return part;
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(
        fmt::format("{} is no file of dropless faults --json: {}", file, error.what()));
  }
}

}  // namespace

std::string_view name(Depth depth) {
  switch (depth) {
    case Depth::first_kill:
      return "first_kill";
    case Depth::alone:
      return "alone";
    case Depth::two_clauses:
      return "two_clauses";
    case Depth::every_case:
      return "every_case";
  }
  return "unknown";
}

nlohmann::ordered_json to_json(const FaultResults& results) {
  auto all = nlohmann::ordered_json::array(), tiers = all;
  for (const Tier tier : results.tiers) tiers.push_back(name(tier));
  for (const FaultEntry& fault : results.faults) {
    nlohmann::ordered_json one = to_json(fault);
    const auto found =
        std::find_if(results.hunts.begin(), results.hunts.end(),
                     [&](const Hunt& hunt) { return hunt.fault.name == fault.name; });
    if (found != results.hunts.end()) add_hunt(one, *found);
    all.push_back(std::move(one));
  }
  return {{"schema", 2},
          {"commit", results.commit},
          {"depth", name(results.depth)},
          {"tiers", std::move(tiers)},
          {"faults", std::move(all)}};
}

FaultResults read_fault_results(const std::vector<std::string>& files) {
  std::map<std::string, nlohmann::ordered_json> known;
  std::optional<Part> first;
  for (const std::string& file : files) {
    Part part = part_of(file);
    if (!first) first = part;
    if (part.commit != first->commit || part.depth != first->depth || part.tiers != first->tiers) {
      throw UsageError(fmt::format("{} is of another commit, depth or tier than {}; run it again",
                                   file, files.front()));
    }
    for (auto& [fault, one] : part.faults) {
      if (!known.emplace(fault, std::move(one)).second) {
        throw UsageError(fmt::format("{} holds fault {} again", file, fault));
      }
    }
  }
  FaultResults results;
  if (!first) throw UsageError("no file with results of faults");
  results.commit = first->commit;
  for (const Depth depth : depths) {
    if (name(depth) == first->depth) results.depth = depth;
  }
  for (const std::string& tier : first->tiers) {
    results.tiers.push_back(tier_from(tier).value_or(Tier::full));
  }
  for (const FaultEntry& fault : fault_entries()) {
    const auto found = known.find(fault.name);
    if (found == known.end()) continue;
    results.faults.push_back(fault);
    if (fault.visibility == Visibility::cpu) {
      try {
        results.hunts.push_back(hunt_from(fault, found->second));
      } catch (const nlohmann::json::exception& error) {
        throw UsageError(
            fmt::format("fault {} of {}: {}", fault.name, files.front(), error.what()));
      }
    }
    known.erase(found);
  }
  if (!known.empty()) {
    throw UsageError(fmt::format("no fault '{}' any more; run it again", known.begin()->first));
  }
  return results;
}

}  // namespace dropless::conformance
