// SPDX-License-Identifier: Apache-2.0
// Ranks for tests: an all-gather between threads or forked processes, and one rank's calls.
#pragma once

#include <functional>
#include <memory>

#include "optimized/cpu/exchange/implementation.h"
#include "tests/cpu/support.h"

namespace dropless::cpu::testing {

// How the bytes of all ranks come together; one for the whole group.
class Gathering {
 public:
  virtual ~Gathering() = default;
  virtual int gather(int rank, const void* sent, void* received, std::size_t bytes) = 0;
};
// Between `ranks` threads, or processes forked after it was made.
std::unique_ptr<Gathering> make_gathering(int ranks);

// Runs body(rank) in `ranks` threads and waits for all of them.
void run_threads(int ranks, const std::function<void(int)>& body);

// Runs body(rank) in `ranks` forked processes; it returns "" or what is wrong. The result of a rank
// that a signal ended is "signal N".
std::vector<std::string> run_processes(int ranks, const std::function<std::string(int)>& body);

inline dropless_profile default_profile() {
  return make_args<dropless_profile>();
}

struct PlanResult {
  Outcome outcome;
  int checked = 0;
  std::vector<Index> pairs, offsets, rows_per_source, global_counts;
  Index total = 0, demand = 0, sent_bytes = 0, sent_node_bytes = 0;
  Index first_overflow = 0, unseen = 0, dropped = 0;
};

// One rank of an exchange. Every call returns its outcome; nothing is asserted.
class Rank {
 public:
  Rank(const dropless_profile& profile, int rank, int ranks, Gathering& gathering);
  ~Rank() { close(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  dropless_exchange_settings settings;  // to be completed before open()
  Outcome open();
  Outcome close();
  Outcome capacity(Index& rows);
  // Output values of a plan that does not write them are -77.
  PlanResult plan(const Array& ids, Index step = 0, bool last = false);
  Outcome dispatch(const Array& x, const Array& rows, const Array* weights = nullptr,
                   const Array* row_weights = nullptr, const Array* scales = nullptr,
                   const Array* row_scales = nullptr, const Array* row_ids = nullptr,
                   const Array* row_source = nullptr);
  Outcome combine(const Array& rows, const Array& y, const Array* row_weights = nullptr);
  Outcome dispatch_backward(const Array& d_rows, const Array& d_x,
                            const Array* d_row_weights = nullptr, const Array* d_weights = nullptr);
  Outcome combine_backward(const Array& d_y, const Array& d_rows, const Array* rows = nullptr,
                           const Array* row_weights = nullptr,
                           const Array* d_row_weights = nullptr);

  [[nodiscard]] int rank() const { return settings.rank; }
  [[nodiscard]] int ranks() const { return settings.ranks; }

 private:
  template <class Args>
  Outcome call(dropless_status (*operation)(void*, dropless_call*, Args*), Args& args);

  struct Context {
    Gathering* gathering;
    int rank;
  };
  const dropless_implementation* table_;
  Context context_;
  dropless_exchange* exchange_ = nullptr;
};

}  // namespace dropless::cpu::testing
