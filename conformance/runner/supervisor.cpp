// SPDX-License-Identifier: Apache-2.0
// Handing out cases, and deciding what a lost or failed case becomes.
#include "conformance/runner/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <fstream>
#include <optional>

#include "conformance/runner/slot.h"

namespace dropless::conformance {
namespace {

constexpr int cases_per_worker = 250;   // bounds what a slow leak can gather
constexpr int starts_in_vain = 3;       // then no further worker is tried
constexpr int hangs_per_operation = 3;  // then it is not entered any more
constexpr int poll_milliseconds = 200;

std::int64_t memory_of_machine() {
  const std::int64_t installed = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::int64_t limit = 0;
  return file >> limit && limit > 0 ? std::min(limit, installed) : installed;
}

bool worker_stays_clean(Status status) {
  return status == Status::pass || status == Status::not_supported || status == Status::mistrusted;
}

bool deserves_a_second_run(Status status) {
  return status == Status::fail || status == Status::crash || status == Status::internal_error;
}

class Run {
 public:
  Run(const SupervisorOptions& options, const nlohmann::ordered_json& description,
      const std::vector<CaseId>& cases, const Supervisor::Observer& observer)
      : options_(options), description_(description), cases_(cases), observer_(observer) {
    const auto places = std::min<std::size_t>(static_cast<std::size_t>(options.jobs), cases.size());
    for (std::size_t i = 0; i < places; ++i) places_.emplace_back(options);
  }

  void to_the_end() {
    while (finished_ < cases_.size()) {
      if (options_.interrupt != nullptr && *options_.interrupt != 0) {
        throw Interrupted(*options_.interrupt);
      }
      if (failed_starts_ >= starts_in_vain) {
        abandon_the_rest();
        return;
      }
      for (Place& place : places_) keep_busy(place);
      wait();
      watch_memory();
      for (Place& place : places_) react(place, place.slot.listen());
    }
  }

 private:
  struct Place {
    explicit Place(const SupervisorOptions& options) : slot(options) {}
    Slot slot;
    std::optional<std::size_t> index;  // case in it
    std::optional<Outcome> first;      // its first, failed run
    std::string first_company;         // case that ran before it in the same worker
  };

  void keep_busy(Place& place) {
    if (!place.index && next_ >= cases_.size()) return;
    if (!place.slot.running()) {
      try {
        place.slot.start();
      } catch (const std::exception& error) {
        note_failed_start(error.what());
      }
    } else if (place.slot.idle()) {
      if (!place.index) place.index = next_++;
      place.slot.assign(++tickets_, cases_[*place.index].text(), blocked_operations());
    }
  }

  void wait() {
    std::vector<pollfd> descriptors;
    auto nearest = Clock::now() + std::chrono::milliseconds(poll_milliseconds);
    for (const Place& place : places_) {
      if (!place.slot.running()) continue;
      nearest = std::min(nearest, place.slot.deadline());
      // Its pipe is closed, so it is about to end: nothing else would wake us up for it.
      if (place.slot.child()->replies() < 0) nearest = Clock::now();
      for (const int one : {place.slot.child()->replies(), place.slot.child()->output()}) {
        if (one >= 0) descriptors.push_back({one, POLLIN, 0});
      }
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(nearest - Clock::now()).count();
    poll(descriptors.data(), descriptors.size(),
         static_cast<int>(std::clamp<std::int64_t>(left + 1, 1, poll_milliseconds)));
  }

  void react(Place& place, Slot::Event event) {
    switch (event) {
      case Slot::Event::nothing:
        return;
      case Slot::Event::loaded:
        if (place.slot.description() == description_) {
          failed_starts_ = 0;
        } else {
          failed_starts_ = starts_in_vain;
          last_complaint_ = "the implementation changed during the run";
          place.slot.stop();
        }
        return;
      case Slot::Event::refused:
        note_failed_start(place.slot.complaint());
        place.slot.stop();
        return;
      case Slot::Event::verdict_arrived:
        settle(place, place.slot.verdict());
        return;
      case Slot::Event::lost:
        if (place.slot.busy()) {
          settle(place, place.slot.verdict());
        } else if (!place.slot.idle()) {
          note_failed_start(place.slot.complaint());
        }
        place.slot.stop();
        return;
    }
  }

  // A run of the case in `place` is over.
  void settle(Place& place, const Verdict& verdict) {
    Outcome outcome;
    outcome.id = cases_[*place.index];
    outcome.verdict = verdict;
    outcome.attempts.push_back({verdict.status, verdict.reason});
    outcome.phase = place.slot.phases().operation();
    if (verdict.status != Status::pass) outcome.output = place.slot.output();
    if (verdict.status == Status::timeout && place.slot.phases().inside()) {
      ++hangs_[outcome.phase];
    }
    const std::string company = place.slot.previous_case();
    if (!worker_stays_clean(verdict.status) || place.slot.cases_served() >= cases_per_worker) {
      place.slot.stop();
    }
    if (!place.first && deserves_a_second_run(verdict.status)) {
      place.first = std::move(outcome);
      place.first_company = company;
      return;  // keep_busy hands the same case to a fresh worker
    }
    if (place.first) outcome = both_runs(*place.first, outcome, place.first_company);
    place.first.reset();
    place.index.reset();
    report(outcome);
  }

  static Outcome both_runs(Outcome first, const Outcome& second, const std::string& company) {
    first.attempts.push_back(second.attempts.front());
    if (second.verdict.status == Status::pass) {
      first.verdict.reason = fmt::format("{}, then pass in a fresh worker: {}",
                                         name(first.verdict.status), first.verdict.reason);
      if (!company.empty()) {
        first.verdict.reason += fmt::format(" (before it the first worker had run {})", company);
      }
      first.verdict.status = Status::flaky;
    }
    return first;
  }

  void report(const Outcome& outcome) {
    ++finished_;
    observer_(outcome);
  }

  void watch_memory() {
    if (Clock::now() < next_look_at_memory_) return;
    next_look_at_memory_ = Clock::now() + std::chrono::milliseconds(poll_milliseconds);
    const std::int64_t limit = options_.memory_limit_bytes > 0 ? options_.memory_limit_bytes
                                                               : memory_of_machine() / 10 * 9;
    std::int64_t total = 0, most = 0;
    Place* biggest = nullptr;
    for (Place& place : places_) {
      if (!place.slot.busy()) continue;
      const std::int64_t bytes = resident_bytes(place.slot.child()->pid());
      total += bytes;
      if (bytes > most) most = bytes, biggest = &place;
    }
    if (biggest == nullptr || total <= limit) return;
    biggest->slot.give_up(Status::resource,
                          fmt::format("the worker held {} MiB, the workers together {} of {} MiB",
                                      most >> 20, total >> 20, limit >> 20));
    settle(*biggest, biggest->slot.verdict());
  }

  void note_failed_start(const std::string& complaint) {
    ++failed_starts_;
    last_complaint_ = complaint;
  }

  // Fail closed: a case that never came back is a failure of the run, not a gap in it.
  void abandon_the_rest() {
    std::vector<std::size_t> left;
    for (const Place& place : places_) {
      if (place.first) {
        report(*place.first);  // it did fail; only its second run is missing
      } else if (place.index) {
        left.push_back(*place.index);
      }
    }
    for (; next_ < cases_.size(); ++next_) left.push_back(next_);
    std::sort(left.begin(), left.end());
    for (const std::size_t index : left) {
      Outcome outcome;
      outcome.id = cases_[index];
      outcome.verdict.reason = fmt::format("no worker could be started: {}", last_complaint_);
      outcome.attempts.push_back({outcome.verdict.status, outcome.verdict.reason});
      report(outcome);
    }
  }

  [[nodiscard]] std::vector<std::string> blocked_operations() const {
    std::vector<std::string> names;
    for (const auto& [operation, hangs] : hangs_) {
      if (hangs >= hangs_per_operation) names.push_back(operation);
    }
    return names;
  }

  const SupervisorOptions& options_;
  const nlohmann::ordered_json& description_;
  const std::vector<CaseId>& cases_;
  const Supervisor::Observer& observer_;
  std::deque<Place> places_;
  std::size_t next_ = 0, finished_ = 0;
  std::int64_t tickets_ = 0;
  std::map<std::string, int> hangs_;  // by operation
  int failed_starts_ = 0;             // in a row
  std::string last_complaint_;
  Clock::time_point next_look_at_memory_;
};

}  // namespace

Supervisor::Supervisor(SupervisorOptions options) : options_(std::move(options)) {
  std::signal(SIGPIPE, SIG_IGN);  // a worker may die while it is spoken to
}

nlohmann::ordered_json Supervisor::probe() {
  Slot slot(options_);
  slot.start();
  for (;;) {
    if (options_.interrupt != nullptr && *options_.interrupt != 0) {
      throw Interrupted(*options_.interrupt);
    }
    switch (slot.listen()) {
      case Slot::Event::loaded:
        return description_ = slot.description();
      case Slot::Event::refused:
        throw UsageError(slot.complaint());
      case Slot::Event::lost:
        throw UsageError(fmt::format("{} {}; load it in a program of your own to find out why",
                                     options_.worker.implementation, slot.complaint()));
      default:
        break;
    }
    pollfd ready{slot.child()->replies(), POLLIN, 0};
    poll(&ready, 1, poll_milliseconds / 10);
  }
}

void Supervisor::run(const std::vector<CaseId>& cases, const Observer& observer) {
  if (description_.is_null()) probe();
  Run(options_, description_, cases, observer).to_the_end();
}

}  // namespace dropless::conformance
