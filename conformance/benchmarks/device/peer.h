// SPDX-License-Identifier: Apache-2.0
// The peer of a benchmark in device memory: a child process that times the same operation by other
// means when it is asked, so that both sides take turns in one run. scripts/torch_peer.py is one.
//
//     Peer peer("python3 scripts/torch_peer.py");
//     const PeerAnswer answer = peer.ask("swiglu rows=32768 width=2048 sets=2 repetitions=5");
//
// Lines on standard input and output:
//   the peer, once            "ready <what it is>"       or "none: <why it cannot serve>"
//   the suite                 "<operation> key=value key=value ..."
//   the peer, to each         "<median microseconds>[ <how>]"  or "none: <why>"
// The peer ends when its input does. What it prints on standard error is shown when it fails.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

namespace dropless::conformance {

class Child;

struct PeerAnswer {
  double seconds = 0;  // 0: there is none
  std::string how;     // "eager, as a graph"
  std::string why;     // there is none
};

class Peer {
 public:
  // The command goes through the shell. Never throws: what is wrong shows in `why` of every answer.
  // A signal number in `interrupt` ends the waiting.
  explicit Peer(const std::string& command, const std::atomic<int>* interrupt = nullptr,
                std::chrono::milliseconds patience = std::chrono::minutes(5));
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }  // what it said it is; or empty
  [[nodiscard]] const std::string& trouble() const { return trouble_; }  // why it serves no more
  PeerAnswer ask(const std::string& request);

 private:
  bool read_line(std::string& line);
  void give_up(const std::string& why);

  std::unique_ptr<Child> child_;
  const std::atomic<int>* interrupt_;
  std::chrono::milliseconds patience_;
  std::string name_, trouble_, printed_;
};

}  // namespace dropless::conformance
