// SPDX-License-Identifier: Apache-2.0
// One place for a worker, the case that is in it, and what has been heard from it so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/runner/child.h"
#include "conformance/runner/outcome.h"
#include "conformance/runner/phase_record.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {

using Clock = std::chrono::steady_clock;

class Slot {
 public:
  // What happened to the case or to the worker. `verdict` holds for verdict_arrived only.
  enum class Event { nothing, loaded, refused, verdict_arrived, lost };

  explicit Slot(const SupervisorOptions& options) : options_(options) {}
  ~Slot() { dismiss_group(); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // A fresh worker; throws std::system_error. It is `loaded` after its first reply.
  void start();
  void stop();
  [[nodiscard]] bool running() const { return child_ != nullptr; }
  [[nodiscard]] bool idle() const { return loaded_ && !ticket_; }
  [[nodiscard]] bool busy() const { return ticket_.has_value(); }

  void assign(std::int64_t ticket, const std::string& id,
              const std::vector<std::string>& blocked_operations);

  // Takes in everything there is to hear, without waiting, and looks at the clock.
  Event listen();
  // After `verdict_arrived`, or after `lost` while a case was in it: the case's verdict.
  [[nodiscard]] const Verdict& verdict() const { return verdict_; }
  // After `refused`, or after `lost` while it was still loading.
  [[nodiscard]] const std::string& complaint() const { return complaint_; }
  [[nodiscard]] const nlohmann::ordered_json& description() const { return description_; }

  // Ends the case in it as `status`.
  void give_up(Status status, std::string reason);

  [[nodiscard]] const PhaseRecord& phases() const { return phases_; }
  [[nodiscard]] const std::string& output() const { return output_; }
  [[nodiscard]] const std::string& previous_case() const { return previous_; }
  [[nodiscard]] int cases_served() const { return served_; }
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }
  [[nodiscard]] const Child* child() const { return child_.get(); }

 private:
  Event hear(const std::string& line);
  Event mourn();
  Event overdue();
  void dismiss_group();

  const SupervisorOptions& options_;
  std::unique_ptr<Child> child_;
  bool loaded_ = false;
  std::optional<std::int64_t> ticket_;
  Clock::time_point started_, deadline_;
  std::string current_, previous_, output_, complaint_;
  PhaseRecord phases_;
  int served_ = 0;
  Verdict verdict_;
  nlohmann::ordered_json description_;
};

}  // namespace dropless::conformance
