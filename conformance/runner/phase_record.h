// SPDX-License-Identifier: Apache-2.0
// Where a case is: the operation that was entered last, on every rank of a collective case.
//
// Announcements: "quantize" entered, "" left; of a rank: "@2/4 exchange_plan", "@2/4 ".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace dropless::conformance {

class PhaseRecord {
 public:
  void clear() { places_.clear(); }
  void hear(std::string_view announcement);

  // Of the rank that is behind, where there are several; empty before the first operation.
  [[nodiscard]] std::string operation() const;
  [[nodiscard]] bool inside() const;  // any rank entered an operation and did not leave it
  // "inside exchange_plan" or, of ranks, "ranks 0, 1, 3 inside exchange_dispatch, rank 2 after
  // exchange_plan had returned; behind: rank 2".
  [[nodiscard]] std::string where() const;

 private:
  struct Place {
    std::string operation;
    bool inside = false;
    std::int64_t entered = 0;  // operations
    [[nodiscard]] std::string text() const;
  };
  [[nodiscard]] std::int64_t fewest() const;
  std::map<int, Place> places_;  // -1: no ranks
};

// "@2/4 exchange_plan": what a rank announces.
std::string announcement_of_rank(int rank, int ranks, std::string_view operation);

}  // namespace dropless::conformance
