// SPDX-License-Identifier: Apache-2.0
// Listening to one worker.
#include "conformance/runner/slot.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "conformance/runner/busy_threads.h"

namespace dropless::conformance {
namespace {

constexpr std::size_t kept_output = 4096;    // bytes of what the implementation printed
constexpr double least_loading_seconds = 5;  // a short --timeout is meant for cases
// A conductor has a limit of its own, which names the rank that does not come.
constexpr double loading_seconds_of_group = 60;
// It keeps the time limit itself, and is given up only when it does not.
constexpr double grace_of_group = 10;
// What a conductor may take to end its ranks in good order.
constexpr auto farewell_of_group = std::chrono::seconds(12);

Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void keep_end(std::string& text, const std::string& more) {
  text += more;
  if (text.size() > kept_output) text.erase(0, text.size() - kept_output);
}

}  // namespace

void Slot::start() {
  stop();
  std::vector<std::string> arguments{"dropless",         "worker",
                                     "--implementation", options_.worker.implementation,
                                     "--threads",        std::to_string(options_.worker.threads)};
  if (!options_.worker.models.empty()) {
    arguments.insert(arguments.end(), {"--models", options_.worker.models});
  }
  double loading_seconds = std::max(options_.timeout_seconds, least_loading_seconds);
  if (options_.worker.ranks > 0) {
    arguments.insert(arguments.end(), {"--ranks", std::to_string(options_.worker.ranks),
                                       "--launcher", options_.worker.launcher, "--timeout",
                                       std::to_string(options_.timeout_seconds)});
    if (!options_.worker.hub.empty()) {
      arguments.insert(arguments.end(), {"--hub", options_.worker.hub});
    }
    loading_seconds += loading_seconds_of_group;
  }
  child_ = std::make_unique<Child>(options_.program, arguments);
  deadline_ = in_seconds(loading_seconds);
}

// Ranks may be anywhere: their conductor ends them when its requests end.
void Slot::dismiss_group() {
  if (!child_ || options_.worker.ranks == 0) return;
  child_->close_requests();
  const auto end = Clock::now() + farewell_of_group;
  while (!child_->ended() && Clock::now() < end) {
    (void)child_->take_replies();
    (void)child_->take_output();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Slot::stop() {
  dismiss_group();
  child_.reset();
  loaded_ = false;
  ticket_.reset();
  phases_.clear();
  current_.clear(), previous_.clear(), output_.clear();
  served_ = 0;
}

void Slot::assign(std::int64_t ticket, const std::string& id,
                  const std::vector<std::string>& blocked_operations) {
  previous_ = current_;
  current_ = id;
  phases_.clear();
  output_.clear();
  ticket_ = ticket;
  ++served_;
  started_ = Clock::now();
  deadline_ =
      in_seconds(options_.timeout_seconds + (options_.worker.ranks > 0 ? grace_of_group : 0));
  // A worker that no longer reads is found dead by the next listen().
  (void)child_->send(one_line({{"ticket", ticket}, {"id", id}, {"blocked", blocked_operations}}));
}

Slot::Event Slot::listen() {
  if (!child_) return Event::nothing;
  const bool dead = child_->ended().has_value();  // asked first: its last words are read below
  const std::vector<std::string> lines = child_->take_replies();
  keep_end(output_, child_->take_output());
  for (const std::string& line : lines) {
    if (const Event event = hear(line); event != Event::nothing) return event;
  }
  if (dead) return mourn();
  if ((busy() || !loaded_) && Clock::now() > deadline_) return overdue();
  return Event::nothing;
}

Slot::Event Slot::hear(const std::string& line) {
  const std::string text = line.size() > 2 ? line.substr(2) : "";
  try {
    switch (line.empty() ? ' ' : line[0]) {
      case 'h':
        description_ = nlohmann::ordered_json::parse(text);
        loaded_ = true;
        return Event::loaded;
      case 'u':
        complaint_ = text;
        return Event::refused;
      case 'p':
        phases_.hear(text);
        return Event::nothing;
      case 'v': {
        const auto reply = nlohmann::ordered_json::parse(text);
        if (!ticket_ || reply.at("ticket") != *ticket_) break;
        verdict_ = verdict_from(reply.at("verdict"));
        ticket_.reset();
        // The operation was never left: what the suite caught came out of it.
        if (phases_.inside() && verdict_.status == Status::internal_error) {
          verdict_.status = Status::crash;
          verdict_.reason =
              fmt::format("{} threw an exception: {}", phases_.operation(), verdict_.reason);
        }
        return Event::verdict_arrived;
      }
      default:
        break;
    }
  } catch (const std::exception&) {
    // Falls through: not a reply of ours.
  }
  child_->finish();
  complaint_ = "the worker sent something that is no reply";
  give_up(Status::crash,
          fmt::format("the worker sent something that is no reply, {}", phases_.where()));
  return Event::lost;
}

Slot::Event Slot::mourn() {
  const std::string end = how_it_ended(child_->finish());
  if (busy() && options_.worker.ranks == 0 && phases_.may_end()) {
    give_up(Status::pass, "");
    verdict_.checks = 1;
    return Event::lost;
  }
  const bool left_by_itself = end.starts_with("exit");
  complaint_ = left_by_itself
                   ? fmt::format("ended the process with {} while it was being loaded", end)
                   : fmt::format("crashed ({}) while it was being loaded", end);
  // Threads die together: nobody knows which of them began.
  give_up(Status::crash, left_by_itself
                             ? fmt::format("the implementation ended the process with {} {}", end,
                                           phases_.places())
                             : fmt::format("{} {}", end, phases_.places()));
  return Event::lost;
}

Slot::Event Slot::overdue() {
  note_busy_threads(child_->pid(), phases_);
  dismiss_group();
  child_->finish();
  const double limit = std::chrono::duration<double>(deadline_ - started_).count();
  complaint_ = "did not finish loading in time";
  // Where a rank has left the case the others wait in vain: it is the cause, not the time.
  if (const auto first = phases_.departure(); first && busy()) {
    give_up(first->status,
            fmt::format("{}; {}", first->reason, phases_.where_others_are(first->rank)));
  } else {
    give_up(Status::timeout, fmt::format("no answer within {:.3g} s, {}", limit, phases_.where()));
  }
  return Event::lost;
}

void Slot::give_up(Status status, std::string reason) {
  verdict_ = {};
  verdict_.status = status;
  verdict_.reason = std::move(reason);
  verdict_.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  if (child_) child_->finish();
}

}  // namespace dropless::conformance
