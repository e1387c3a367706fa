// SPDX-License-Identifier: Apache-2.0
// The words of a failed round (EXCHANGE-14): the call, the rank waited for, the time.
#include "optimized/cpu/exchange/transport.h"

#include <cstdio>

namespace dropless::cpu::exchange {
namespace {

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

std::string missing(const Expected& expected) {
  const char* what = expected.tag.phase == Phase::plan    ? "routing"
                     : expected.tag.phase == Phase::layer ? "settings"
                                                          : "rows";
  return std::string(operation_name(expected.tag.phase)) + ": no " + what + " from rank " +
         std::to_string(expected.tag.source);
}

std::string call_text(const Tag& tag) {
  return std::string(operation_name(tag.phase)) + " (call " + std::to_string(tag.call) +
         " of this handle)";
}

}  // namespace

const char* operation_name(Phase phase) {
  switch (phase) {
    case Phase::plan:
      return "exchange_plan";
    case Phase::dispatch:
      return "exchange_dispatch";
    case Phase::combine:
      return "exchange_combine";
    case Phase::dispatch_backward:
      return "exchange_dispatch_backward";
    case Phase::combine_backward:
      return "exchange_combine_backward";
    case Phase::layer:
      return "layer call";
  }
  return "exchange";
}

void timed_out(const Expected& expected) {
  throw Refusal{DROPLESS_TIMEOUT, missing(expected) + " within " + seconds_text(expected.seconds)};
}

void not_taken(const Expected& expected) {
  throw Refusal{DROPLESS_TIMEOUT, std::string(operation_name(expected.tag.phase)) + ": rank " +
                                      std::to_string(expected.tag.source) +
                                      " has not taken the rows of earlier " + "calls within " +
                                      seconds_text(expected.seconds)};
}

void peer_lost(const Expected& expected, const std::string& why) {
  throw Refusal{DROPLESS_PEER_LOST, missing(expected) + ": " + why};
}

void check_tag(const Expected& expected, const Tag& arrived) {
  const Tag& own = expected.tag;
  if (arrived.handle == own.handle && arrived.call == own.call && arrived.phase == own.phase &&
      arrived.generation == own.generation && arrived.source == own.source) {
    return;
  }
  refuse("rank " + std::to_string(own.source) + " is in " + call_text(arrived) + ", this rank in " +
         call_text(own) + ": calls must come in the same order on all ranks");
}

std::string gave_up_text(int rank, const std::string& why) {
  return "rank " + std::to_string(rank) + " gave up: " + why;
}

}  // namespace dropless::cpu::exchange
