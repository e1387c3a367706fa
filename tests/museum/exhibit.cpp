// SPDX-License-Identifier: Apache-2.0
// Running a fault and the correct implementation side by side, and recording what was compared.
#include "tests/museum/exhibit.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/cases/case_run.h"
#include "conformance/judge/observer.h"
#include "conformance/ranks/rank_group.h"
#include "conformance/ranks/thread_ranks.h"
#include "conformance/runner/fault_hunt.h"
#include "tests/museum/checks.h"
#include "tests/museum/typical.h"

namespace dropless::museum {
namespace {

using conformance::CaseId;
using conformance::Comparison;
using conformance::Family;
using conformance::FaultEntry;
using conformance::Status;
using conformance::Tier;
using conformance::Verdict;

constexpr int enough_failures = 5;

struct Compared {
  std::string clause, what;
  bool is_float = false;
  std::vector<double> expected, got;  // judged elements only
};

class Recorder : public conformance::JudgeObserver {
 public:
  void compared(int rank, const Comparison& comparison) override {
    Compared one{
        std::string(comparison.clause), std::string(comparison.what), comparison.is_float, {}, {}};
    for (std::size_t i = 0; i < comparison.expected.size(); ++i) {
      if (!comparison.judged.empty() && !comparison.judged[i]) continue;
      one.expected.push_back(comparison.expected[i]);
      one.got.push_back(comparison.got[i]);
    }
    if (!one.expected.empty()) all[rank].push_back(std::move(one));
  }
  std::map<int, std::vector<Compared>> all;
};

struct Observed {
  Verdict verdict;
  std::map<int, std::vector<Compared>> compared;  // by rank
};

Observed observe(const std::string& implementation, const CaseId& id) {
  const dropless_implementation* table = conformance::table_from_source(implementation);
  const Family& family = *conformance::registry().find(id.family);
  Recorder recorder;
  Observed out;
  out.verdict = conformance::is_collective(family)
                    ? conformance::run_case_over_threads(*table, family, id)
                    : run_case(*table, family, id);
  out.compared = std::move(recorder.all);
  return out;
}

const FaultEntry& entry_of(const std::string& name) {
  const auto& entries = conformance::fault_entries();
  return *std::find_if(entries.begin(), entries.end(),
                       [&](const FaultEntry& entry) { return entry.name == name; });
}

class Gallery {
 public:
  explicit Gallery(const std::string& fault) : entry_(entry_of(fault)) {
    exhibit_.fault = fault;
    exhibit_.same_data.sees.assign(common_checks().size(), false);
    exhibit_.typical.sees.assign(common_checks().size(), false);
  }

  Exhibit visit() {
    visit_failing(Tier::smoke, enough_failures);
    if (!exhibit_.same_data.ours) visit_failing(Tier::standard, 1);
    for (const CaseId& id : typical_cases(entry_.stage())) {
      look(observe("fault:" + entry_.name, id), id, exhibit_.typical);
    }
    if (!exhibit_.same_data.ours) exhibit_.trouble = "no case of the suite failed in one process";
    return exhibit_;
  }

 private:
  // Cases in the order in which the fault is hunted, until `wanted` of them have failed.
  void visit_failing(Tier tier, int wanted) {
    int failed = 0;
    for (const CaseId& id : cases_for(conformance::registry(), entry_, tier, /*alone=*/false)) {
      // Cases of other stages, the layer's above all, are slow; one that fails will do.
      const bool foreign = conformance::registry().find(id.family)->stage() != entry_.stage();
      if (failed >= wanted || (failed > 0 && foreign)) return;
      const Observed faulty = observe("fault:" + entry_.name, id);
      if (faulty.verdict.status != Status::fail) continue;
      failed += look(faulty, id, exhibit_.same_data) ? 1 : 0;
    }
  }

  // False: the case does not pass on the correct implementation, and so says nothing.
  bool look(const Observed& faulty, const CaseId& id, Sight& sight) {
    const Observed correct = observe("control:" + entry_.name, id);
    if (correct.verdict.status != Status::pass) return false;
    if (faulty.verdict.status == Status::fail) {
      if (exhibit_.case_id.empty() && !faulty.verdict.failures.empty()) {
        exhibit_.case_id = id.text(), exhibit_.clause = faulty.verdict.failures.front().clause;
      }
      sight.ours = true;
      // The suite judges ids by relations, since several may be right; an equality sees them too.
      if (wrong_ids(faulty.verdict)) {
        sight.visible = true;
        sight.sees.assign(sight.sees.size(), true);
      }
    }
    // A run that ended early compared less; what was compared comes in the same order.
    for (const auto& [rank, compared] : faulty.compared) {
      const auto other = correct.compared.find(rank);
      if (other == correct.compared.end()) continue;
      const std::size_t both = std::min(compared.size(), other->second.size());
      for (std::size_t i = 0; i < both; ++i) compare(compared[i], other->second[i], sight);
    }
    return true;
  }

  static bool wrong_ids(const Verdict& verdict) {
    return std::any_of(verdict.failures.begin(), verdict.failures.end(), [](const auto& failure) {
      return failure.bound == "relation" &&
             (failure.what == "selected experts" || failure.what.find("ids") != std::string::npos);
    });
  }

  static void compare(const Compared& faulty, const Compared& correct, Sight& sight) {
    if (faulty.what != correct.what || faulty.got.size() != correct.got.size()) return;
    if (equal(faulty.got, correct.got)) return;
    sight.visible = true;
    for (std::size_t check = 0; check < sight.sees.size(); ++check) {
      const auto accepts = [&](const Compared& one) {
        return one.is_float ? common_checks()[check].accepts(one.expected, one.got)
                            : equal(one.expected, one.got);
      };
      if (!sight.sees[check]) sight.sees[check] = !accepts(faulty) && accepts(correct);
    }
  }

  const FaultEntry& entry_;
  Exhibit exhibit_;
};

nlohmann::json to_json(const Sight& sight) {
  return {{"visible", sight.visible}, {"ours", sight.ours}, {"sees", sight.sees}};
}

Sight sight_from(const nlohmann::json& json) {
  return {json.at("visible"), json.at("ours"), json.at("sees").get<std::vector<bool>>()};
}

}  // namespace

Exhibit examine(const std::string& fault) {
  return Gallery(fault).visit();
}

nlohmann::json to_json(const Exhibit& exhibit) {
  return {{"fault", exhibit.fault},     {"same_data", to_json(exhibit.same_data)},
          {"clause", exhibit.clause},   {"typical", to_json(exhibit.typical)},
          {"case_id", exhibit.case_id}, {"trouble", exhibit.trouble}};
}

Exhibit exhibit_from(const nlohmann::json& json) {
  return {json.at("fault"),
          sight_from(json.at("same_data")),
          sight_from(json.at("typical")),
          json.at("clause"),
          json.at("case_id"),
          json.at("trouble")};
}

}  // namespace dropless::museum
