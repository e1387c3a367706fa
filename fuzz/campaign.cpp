// SPDX-License-Identifier: Apache-2.0
// The loop of a fuzz run.
#include "fuzz/campaign.h"

#include <fmt/format.h>

#include <algorithm>

#include "fuzz/drawing.h"
#include "fuzz/labels.h"

namespace dropless::fuzz {
namespace {

using conformance::FuzzFinding;
using conformance::Outcome;

using Clock = std::chrono::steady_clock;

constexpr std::int64_t first_batch = 64, largest_batch = 1024;
constexpr double seconds_per_batch = 3;
constexpr std::int64_t saved_per_kind = 20;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Campaign {
 public:
  Campaign(const std::vector<const Family*>& families, const FuzzPlan& plan, const Runners& runners,
           Corpus& corpus)
      : families_(families),
        plan_(plan),
        runners_(runners),
        corpus_(corpus),
        any_(any_case(families)),
        random_(plan.seed) {
    report_.corpus = corpus.path();
  }

  FuzzReport run(const std::function<void(const FuzzReport&)>& progress) {
    while (const std::int64_t size = next_batch()) {
      fresh_.clear(), drawn_.clear();
      const auto start = Clock::now();
      judge(size);
      report_.seconds += since(start);
      const auto shrinking = Clock::now();
      for (const Fresh& one : fresh_) make_small(one);
      report_.shrink_seconds += since(shrinking);
      if (progress) progress(report_);
    }
    for (const Requirement& one : requirements_for(families_)) {
      report_.shares.push_back({one.label, one.among, tally_.count(one.label),
                                tally_.count(one.among), one.share, tally_.meets(one)});
    }
    return std::move(report_);
  }

 private:
  struct Fresh {
    std::size_t finding, place;  // place: in the batch
  };

  // 0: the run is over.
  std::int64_t next_batch() {
    if (static_cast<int>(report_.findings.size()) >= plan_.kinds) {
      report_.stopped = true;
      return 0;
    }
    std::int64_t size = largest_batch;
    if (plan_.seconds) {
      const double left = *plan_.seconds - report_.seconds;
      if (left <= 0) return 0;
      const double rate = static_cast<double>(report_.cases) / std::max(report_.seconds, 1e-3);
      size = static_cast<std::int64_t>(rate * std::min(left, seconds_per_batch)) + 1;
      if (report_.cases == 0) size = first_batch;
    }
    if (plan_.cases) size = std::min(size, *plan_.cases - report_.cases);
    return std::clamp<std::int64_t>(size, 0, largest_batch);
  }

  // Everything that failed is on disk afterwards.
  void judge(std::int64_t size) {
    std::vector<CaseId> cases;
    for (std::int64_t i = 0; i < size; ++i) {
      drawn_.push_back(any_(random_.split()));
      cases.push_back(drawn_.back().value());
      tally_.add(family_of(cases.back()), cases.back());
    }
    const std::vector<Outcome> outcomes = runners_.batch(cases);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      ++report_.cases;
      ++report_.statuses[outcomes[i].verdict.status];
      report_.checks += outcomes[i].verdict.checks;
      if (!conformance::acceptable(outcomes[i].verdict.status)) note(outcomes[i], i);
    }
  }

  void note(const Outcome& outcome, std::size_t place) {
    const std::string kind = kind_of(outcome);
    auto& findings = report_.findings;
    auto found = std::find_if(findings.begin(), findings.end(),
                              [&](const FuzzFinding& one) { return one.kind == kind; });
    if (found == findings.end()) {
      FuzzFinding finding;
      finding.kind = kind, finding.number = report_.cases;
      finding.first = outcome.id, finding.outcome = outcome;
      findings.push_back(std::move(finding));
      found = findings.end() - 1;
      fresh_.push_back({findings.size() - 1, place});
    }
    if (++found->cases > saved_per_kind) return;
    corpus_.save(outcome,
                 fmt::format("{}, fuzz seed {}, case {}", runners_.who, plan_.seed, report_.cases));
  }

  void make_small(const Fresh& fresh) {
    if (plan_.shrink_seconds <= 0) return;
    FuzzFinding& finding = report_.findings[fresh.finding];
    const Shrunk small = shrink(drawn_[fresh.place], finding.outcome, runners_.few, runners_.width,
                                std::chrono::duration<double>(plan_.shrink_seconds));
    finding.outcome = small.outcome;
    finding.steps = small.steps, finding.candidates = small.candidates;
    finding.out_of_time = small.out_of_time;
    if (small.steps == 0) return;
    corpus_.save(small.outcome, fmt::format("{}, shrunk from fuzz seed {}, case {}", runners_.who,
                                            plan_.seed, finding.number));
  }

  const Family& family_of(const CaseId& id) const {
    return **std::find_if(families_.begin(), families_.end(),
                          [&](const Family* family) { return family->name == id.family; });
  }

  const std::vector<const Family*>& families_;
  const FuzzPlan& plan_;
  const Runners& runners_;
  Corpus& corpus_;
  rc::Gen<CaseId> any_;
  rc::Random random_;
  Tally tally_;
  std::vector<rc::Shrinkable<CaseId>> drawn_;  // of this batch
  std::vector<Fresh> fresh_;                   // kinds that this batch brought up
  FuzzReport report_;
};

}  // namespace

FuzzReport fuzz(const std::vector<const Family*>& families, const FuzzPlan& plan,
                const Runners& runners, Corpus& corpus,
                const std::function<void(const FuzzReport&)>& progress) {
  return Campaign(families, plan, runners, corpus).run(progress);
}

}  // namespace dropless::fuzz
