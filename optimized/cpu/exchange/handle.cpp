// SPDX-License-Identifier: Apache-2.0
// Handles, and the round that every collective call goes through.
#include "optimized/cpu/exchange/handle.h"

namespace dropless::cpu::exchange {
namespace {

Deadline after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Handle::Handle(Group settings, Connected connected)
    : group(std::move(settings)),
      scratch(at(4 * group.ranks)),
      transport_(std::move(connected.transport)),
      ranks_here_(connected.ranks_here) {
  tag_.handle = connected.handle;
  tag_.source = group.rank;
}

Handle::~Handle() {
  if (!transport_) return;
  // After a failure nobody is waited for, only what explains it may still leave.
  transport_->close(after(failed_ ? std::min(0.5, group.timeout_seconds) : group.timeout_seconds));
}

const char* Handle::transport_name() const {
  return transport_ ? transport_->name() : "self";
}

bool Handle::shares_memory() const {
  return !transport_ || transport_->shares_memory();
}

int Handle::threads(int asked) const {
  // Ranks that are threads already fill the processors; the pool would run them one by one.
  const int share = std::max(1, thread_count(0) / std::max(1, ranks_here_));
  if (asked > 0) return ranks_here_ == 1 ? asked : std::min(asked, share);
  return share;
}

void Handle::give_up(const Refusal& why) noexcept {
  if (failed_) return;
  failed_ = true;
  failure_ = why;
  if (transport_) transport_->give_up(why);
}

void Handle::refuse_if_failed() const {
  if (failed_) {
    throw Refusal{failure_.status,
                  "the exchange has failed and must be opened anew: " + failure_.message};
  }
}

Round::Round(Handle& handle, Phase phase)
    : handle_(handle), deadline_(after(handle.group.timeout_seconds)) {
  ++handle.tag_.call;
  if (phase == Phase::plan) ++handle.tag_.generation;
  handle.tag_.phase = phase;
  tag_ = handle.tag_;
}

Expected Round::expected(Index source) const {
  Expected result{tag_, handle_.group.timeout_seconds};
  result.tag.source = static_cast<std::int32_t>(source);
  return result;
}

const Gathered* Round::gather(const std::vector<std::int64_t>& mine) {
  if (!handle_.transport_) return nullptr;
  return handle_.transport_->gather(expected(handle_.group.rank), mine, deadline_);
}

void Round::offer(Index destination, const Sections& sections) {
  if (destination == handle_.group.rank) {
    own_ = sections;
  } else {
    handle_.transport_->offer(static_cast<int>(destination), {tag_, sections});
  }
}

Round::Sections Round::sizes(Index source) {
  if (source == handle_.group.rank) return own_;
  return handle_.transport_->await(expected(source), deadline_).sections;
}

void Round::await(Index source, const Sections& wanted) {
  const Sections coming = sizes(source);
  for (std::size_t s = 0; s < wanted.size(); ++s) {
    if (coming[s].rows == wanted[s].rows &&
        (wanted[s].rows == 0 || coming[s].row_bytes == wanted[s].row_bytes)) {
      continue;
    }
    const auto text = [](const Section& section) {
      return std::to_string(section.rows) + " rows of " + std::to_string(section.row_bytes) +
             " bytes";
    };
    static constexpr const char* names[] = {"payload", "scales", "weights"};
    refuse(std::string(operation_name(tag_.phase)) + ": rank " + std::to_string(source) +
           " sends other " + names[s] + " than this rank expects: " + text(coming[s]) + ", not " +
           text(wanted[s]));
  }
}

const Round::Sections& Round::open(Index source) {
  if (source == handle_.group.rank) return own_;
  opened_.push_back(handle_.transport_->open(static_cast<int>(source)).sections);
  sources_.push_back(static_cast<int>(source));
  return opened_.back();
}

void Round::finish() {
  for (const int source : sources_) handle_.transport_->release(source);
  sources_.clear();
  if (handle_.transport_) handle_.transport_->settle(expected(handle_.group.rank), deadline_);
}

void Round::fail(const Refusal& refusal) noexcept {
  handle_.give_up(refusal);
}

}  // namespace dropless::cpu::exchange
