// SPDX-License-Identifier: Apache-2.0
// Rank 0 of a job that a launcher has started: the agents of all other ranks connect here, once for
// the whole run, and so does every conductor that plays cases with them.
//
// Lines, each way:   agent to hub     agent {hello}, then: l G line, e G how, o G "printed"
//                    hub to agent     welcome, s G {arguments}, k, l line, x code message
//                    conductor        conductor key; then the same with the rank in front
//                    to conductor     ready, or gone R message
// G is the conductor's number: what an earlier conductor's rank processes still say is not heard.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance/ranks/rendezvous.h"

namespace dropless::conformance {

class Hub {
 public:
  // Waits until all agents are here. Throws UsageError, after telling those that are: a rank is
  // missing, comes twice, counts differently or has another build; port or file cannot be had.
  Hub(const MeetingPoint& point, int ranks, double join_seconds, const std::atomic<int>& interrupt);
  ~Hub();  // as finish(1)
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // For --hub of a conductor.
  [[nodiscard]] std::string address() const;
  // Tells all agents to end with this code; `message`, if any, is what they print.
  void finish(int code, const std::string& message);

 private:
  struct Agent {
    std::unique_ptr<Link> link;
    std::string host;
  };
  void gather(double join_seconds, const std::atomic<int>& interrupt);
  void take_hello(std::unique_ptr<Link> link, const std::string& line);
  void tell_all(int code, const std::string& message);
  void relay();
  void relay_once();
  void meet_conductor(const std::string& line);
  void drop_conductor();
  [[nodiscard]] std::vector<int> missing() const;

  Host host_;
  std::string conductor_key_;
  std::vector<Agent> agents_;  // by rank; the first one stays empty
  std::vector<std::unique_ptr<Link>> unknown_;
  std::unique_ptr<Link> conductor_;
  std::atomic<bool> stop_ = false;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace dropless::conformance
