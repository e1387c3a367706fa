// SPDX-License-Identifier: Apache-2.0
// Planted faults under random cases: how many cases does it take until one of them fails?
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#include "conformance/runner/parallel_campaign.h"
#include "fuzz/corpus.h"
#include "fuzz/drawing.h"
#include "fuzz/families.h"
#include "fuzz/shrinking.h"

namespace dropless::conformance {
namespace {

using fuzz::CaseId;
using Drawn = rc::Shrinkable<CaseId>;

constexpr std::size_t first_batch = 32, largest_batch = 512;
constexpr int draws_in_vain = 10000;

// The cases of one stage, the same for every fault, drawn when somebody needs them.
class Sequence {
 public:
  Sequence(std::vector<const Family*> families, const FuzzPlan& plan)
      : new_values_(plan.new_values),
        by_hand_(families),
        any_(fuzz::any_case(std::move(families))),
        random_(plan.seed) {}

  [[nodiscard]] bool has_new_values(const CaseId& id) const {
    return !by_hand_.contains_but_for_the_seed(id);
  }

  std::vector<Drawn> cases(std::size_t first, std::size_t last) {
    const std::lock_guard lock(mutex_);
    while (drawn_.size() < last) drawn_.push_back(next());
    return {drawn_.begin() + static_cast<std::ptrdiff_t>(first),
            drawn_.begin() + static_cast<std::ptrdiff_t>(last)};
  }

 private:
  Drawn next() {
    for (int i = 0; i < draws_in_vain; ++i) {
      Drawn drawn = any_(random_.split());
      const CaseId& id = drawn.value();
      if (new_values_ ? has_new_values(id) : !by_hand_.contains(id)) return drawn;
    }
    throw UsageError("the tiers hold every case of these families; choose others");
  }

  std::mutex mutex_;
  bool new_values_;
  fuzz::ChosenByHand by_hand_;
  rc::Gen<CaseId> any_;
  rc::Random random_;
  std::deque<Drawn> drawn_;
};

SupervisorOptions one_worker(SupervisorOptions options, const std::string& implementation) {
  options.jobs = 1;
  options.worker.implementation = implementation;
  return options;
}

bool is_failure(Status status) {
  return status == Status::fail || status == Status::crash || status == Status::timeout;
}

struct Killed {};  // thrown by the observer: no further case is needed

class FaultRun {
 public:
  FaultRun(const FaultEntry& fault, const FuzzPlan& plan, const SupervisorOptions& options,
           Sequence& sequence)
      : plan_(plan),
        faulty_(one_worker(options, "fault:" + fault.name)),
        correct_(one_worker(options, "control:" + fault.name)),
        sequence_(sequence) {
    found_.fault = fault;
  }

  FuzzedFault go() {
    const auto start = std::chrono::steady_clock::now();
    (void)faulty_.probe();
    const auto all = static_cast<std::size_t>(*plan_.cases);
    for (std::size_t done = 0, batch = first_batch; done < all && !found_.killer; done += batch) {
      if (done > 0) batch = std::min(4 * batch, largest_batch);
      judge(sequence_.cases(done, std::min(done + batch, all)));
    }
    found_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (found_.killer && plan_.shrink_seconds > 0) make_small();
    return std::move(found_);
  }

 private:
  void judge(const std::vector<Drawn>& drawn) {
    std::vector<CaseId> cases;
    for (const Drawn& one : drawn) cases.push_back(one.value());
    try {
      std::size_t place = 0;  // one worker: outcomes come in the order of the cases
      faulty_.run(cases, [&](const Outcome& outcome) {
        ++found_.cases;
        const Status status = outcome.verdict.status;
        if (status == Status::not_supported || status == Status::mistrusted) ++found_.not_judged;
        if (is_failure(status)) note(outcome, drawn[place]);
        ++place;
      });
    } catch (const Killed&) {
    }
  }

  void note(const Outcome& outcome, const Drawn& drawn) {
    if (!passes_without_fault(outcome.id)) {
      ++found_.accusations;
      return;
    }
    found_.killer = outcome;
    found_.first = outcome.id;
    found_.new_values = sequence_.has_new_values(outcome.id);
    killer_.emplace(drawn);
    throw Killed{};
  }

  bool passes_without_fault(const CaseId& id) {
    if (!probed_) (void)correct_.probe();
    probed_ = true;
    return fuzz::judged(correct_, {id}).front().verdict.status == Status::pass;
  }

  void make_small() {
    const auto run = [&](const std::vector<CaseId>& cases) { return fuzz::judged(faulty_, cases); };
    const fuzz::Shrunk small = fuzz::shrink(*killer_, *found_.killer, run, 8,
                                            std::chrono::duration<double>(plan_.shrink_seconds));
    if (small.steps > 0 && passes_without_fault(small.outcome.id)) found_.killer = small.outcome;
  }

  const FuzzPlan& plan_;
  Supervisor faulty_, correct_;
  bool probed_ = false;
  Sequence& sequence_;
  std::optional<Drawn> killer_;
  FuzzedFault found_;
};

}  // namespace

std::vector<FuzzedFault> fuzz_faults(const FuzzPlan& plan, const std::vector<FaultEntry>& faults,
                                     const SupervisorOptions& options,
                                     const std::function<void(const FuzzedFault&)>& known) {
  std::map<std::string, Sequence> sequences;
  for (const FaultEntry& fault : faults) {
    if (sequences.contains(fault.stage())) continue;
    FuzzPlan of_stage = plan;
    of_stage.stages = {fault.stage()};
    sequences.try_emplace(fault.stage(), fuzz::families_of(of_stage), plan);
  }
  fuzz::Corpus corpus(plan.out, "faults");
  std::vector<FuzzedFault> all(faults.size());
  const auto find = [&](std::size_t i) {
    all[i] = FaultRun(faults[i], plan, options, sequences.at(faults[i].stage())).go();
  };
  const auto tell = [&](std::size_t i) {
    // What was made small is a case worth keeping.
    if (all[i].killer && plan.shrink_seconds > 0) {
      corpus.save(*all[i].killer, fmt::format("fault {}", faults[i].name));
    }
    known(all[i]);
  };
  parallel_campaign(faults.size(), options.jobs, find, tell);
  return all;
}

}  // namespace dropless::conformance
