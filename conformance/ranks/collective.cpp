// SPDX-License-Identifier: Apache-2.0
// Gatherings, departures, the watchdog, one verdict.
#include "conformance/ranks/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "conformance/ranks/thread_ranks.h"
#include "conformance/runner/busy_threads.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// Longer than an implementation may take to notice that a rank is lost (EXCHANGE-14: 10 s).
constexpr double grace_seconds = 12;
constexpr auto time_to_answer = milliseconds(200);

LinkClock::duration in_clock(double seconds) {
  return std::chrono::duration_cast<LinkClock::duration>(duration<double>(seconds));
}

}  // namespace

Collective::Collective(int ranks, std::int64_t ticket, double timeout_seconds, Voices voices)
    : ranks_(static_cast<std::size_t>(ranks)),
      ticket_(ticket),
      timeout_(timeout_seconds),
      voices_(std::move(voices)),
      started_(LinkClock::now()),
      deadline_(started_ + in_clock(timeout_seconds)),
      next_look_(started_ + in_clock(0.5 * timeout_seconds)) {
  for (int rank = 0; rank < ranks; ++rank) {  // so that all are known, whoever speaks first
    record_.hear(announcement_of_rank(rank, ranks, ""));
  }
}

double Collective::seconds() const {
  return duration<double>(LinkClock::now() - started_).count();
}

void Collective::take(const Heard& heard) {
  if (heard.kind == Heard::Kind::line) take_line(heard.rank, heard.text);
  if (heard.kind == Heard::Kind::ended) ended(heard.rank, heard.text);
}

void Collective::take_line(int rank, const std::string& line) {
  const std::string text = line.size() > 2 ? line.substr(2) : "";
  const int ranks = static_cast<int>(ranks_.size());
  switch (line.empty() ? ' ' : line[0]) {
    case 'p': {
      const std::string announcement = announcement_of_rank(rank, ranks, text);
      record_.hear(announcement);
      voices_.to_supervisor(announcement);
      return;
    }
    case 'g':
      return take_gathering(rank, text);
    case 's':
      of(rank).used_before = of(rank).used;
      of(rank).used = std::strtod(text.c_str(), nullptr);
      return;
    case 't':
      of(rank).terminated = true;
      return;
    case 'v':
      return take_verdict(rank, text);
    default:
      return lose(rank, fmt::format("sent something that is no reply, {}", record_.where_is(rank)));
  }
}

void Collective::take_gathering(int rank, const std::string& text) {
  char* end = nullptr;
  const std::int64_t round = std::strtoll(text.c_str(), &end, 10);
  gathering_[rank] = {round, *end == ' ' ? std::string(end + 1) : ""};
  if (somebody_left_) return break_gathering();
  if (gathering_.size() < ranks_.size()) return;
  const bool agree = std::all_of(gathering_.begin(), gathering_.end(), [&](const auto& entry) {
    return entry.second.round == round &&
           entry.second.bytes.size() == gathering_.begin()->second.bytes.size();
  });
  if (!agree) return break_gathering();
  std::string all = fmt::format("g {} ", round);
  for (const auto& [one, part] : gathering_) all += part.bytes;
  gathering_.clear();
  for (int one = 0; one < static_cast<int>(ranks_.size()); ++one) voices_.to_rank(one, all);
}

// Whoever waits is told that it waits in vain.
void Collective::break_gathering() {
  for (const auto& [rank, part] : gathering_) {
    voices_.to_rank(rank, fmt::format("b {}", part.round));
  }
  gathering_.clear();
}

void Collective::take_verdict(int rank, const std::string& text) {
  try {
    const auto reply = nlohmann::ordered_json::parse(text);
    if (reply.at("ticket") != ticket_) return;  // of a case that was given up
    of(rank).verdict = verdict_from(reply.at("verdict"));
    left(rank);
  } catch (const std::exception&) {
    lose(rank, fmt::format("sent something that is no verdict, {}", record_.where_is(rank)));
  }
}

void Collective::ended(int rank, const std::string& how) {
  if (of(rank).verdict) return;
  if (record_.may_end(rank)) return end_as_wanted(rank);
  if (of(rank).terminated) return;
  lose(rank, how.starts_with("exit")
                 ? fmt::format("ended its process with {} {}", how, record_.where_is(rank))
                 : fmt::format("died ({}) {}", how, record_.where_is(rank)));
}

void Collective::end_as_wanted(int rank) {
  wanted_end_ = true;
  Verdict verdict;
  verdict.status = Status::pass;
  verdict.checks = 1;
  verdict.seconds = seconds();
  record_.hear(
      announcement_of_rank(rank, static_cast<int>(ranks_.size()), departure_text(verdict)));
  of(rank).verdict = std::move(verdict);
  left(rank);
}

void Collective::lose(int rank, const std::string& reason) {
  if (of(rank).verdict) return;
  Verdict verdict;
  verdict.status = Status::crash;
  verdict.reason = reason;
  verdict.seconds = seconds();
  const std::string announcement =
      announcement_of_rank(rank, static_cast<int>(ranks_.size()), departure_text(verdict));
  record_.hear(announcement);
  voices_.to_supervisor(announcement);
  of(rank).verdict = std::move(verdict);
  left(rank);
}

void Collective::left(int rank) {
  somebody_left_ = true;
  break_gathering();
  if (acceptable(of(rank).verdict->status) || grace_) return;
  grace_ = true;
  deadline_ = std::min(deadline_, LinkClock::now() + in_clock(grace_seconds));
  next_look_ = std::min(next_look_, deadline_);
}

void Collective::ask_for_use() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (!of(rank).verdict) voices_.to_rank(rank, "s");
  }
}

void Collective::note_who_is_busy() {
  const double span = duration<double>(deadline_ - first_look_).count();
  std::map<int, double> shares;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const Rank& one = of(rank);
    if (!one.verdict && one.used_before >= 0) shares[rank] = (one.used - one.used_before) / span;
  }
  note_busy_shares(shares, record_);
}

// Half-way and at the deadline the ranks are asked what they have used: who computes where others
// sleep is the one that they wait for.
bool Collective::over() {
  const bool all = std::all_of(ranks_.begin(), ranks_.end(),
                               [](const Rank& rank) { return rank.verdict || rank.terminated; });
  if (all) return true;
  const auto now = LinkClock::now();
  if (now < next_look_) return false;
  if (now < deadline_) {  // half-way
    first_look_ = now;
    next_look_ = deadline_;
    ask_for_use();
    return false;
  }
  if (!asked_at_the_end_) {
    asked_at_the_end_ = true;
    next_look_ = now + time_to_answer;
    ask_for_use();
    return false;
  }
  note_who_is_busy();
  return true;
}

Verdict Collective::verdict() const {
  std::vector<Verdict> verdicts;
  bool complete = true;
  for (const Rank& rank : ranks_) {
    complete = complete && (rank.verdict || (wanted_end_ && rank.terminated));
    verdicts.push_back(rank.verdict.value_or(Verdict{Status::pass, "", {}, 0, 0, {}, 0}));
  }
  Verdict all = merged(verdicts);
  const std::optional<PhaseRecord::Departure> first = record_.departure();
  if (complete && (!first || first->status != Status::crash)) return all;
  all.seconds = seconds();
  if (first) {
    all.status = first->status;
    all.reason = fmt::format("{}; {}", first->reason, record_.where_others_are(first->rank));
  } else if (std::any_of(ranks_.begin(), ranks_.end(),
                         [](const Rank& r) { return r.terminated; })) {
    all.status = Status::crash;
    all.reason = fmt::format("the launcher ended the ranks, {}", record_.where(true));
  } else {
    all.status = Status::timeout;
    all.reason = fmt::format("no answer within {:.3g} s, {}", timeout_, record_.where(true));
  }
  return all;
}

}  // namespace dropless::conformance
