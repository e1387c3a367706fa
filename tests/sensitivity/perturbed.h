// SPDX-License-Identifier: Apache-2.0
// The reference with a changed input: before the operation runs, one of its inputs is exchanged for
// a copy that was edited in one place. The operation itself stays correct. Where several ranks make
// the call, one rank's input is changed, and of all ranks what they must agree about.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tests/sensitivity/edits.h"

namespace dropless::sensitivity {

struct Perturbation {
  std::string operation = {}, input = {};  // "gemm_fprop", "w.scales"; none: nothing is changed
  std::string edit = {};                   // by its name
  int call = 0;                            // of those that have the input, from 1; 0: every one
  bool first_rank = false;  // of several ranks, the first one's input, not the last one's
};

// One input as it was seen.
struct Seen {
  Role role = Role::values;
  int calls = 0;  // that had it; of several ranks, the changed one's
};

class Perturbed {
 public:
  explicit Perturbed(Perturbation perturbation);
  ~Perturbed();
  Perturbed(const Perturbed&) = delete;
  Perturbed& operator=(const Perturbed&) = delete;

  [[nodiscard]] const dropless_implementation& table() const;
  // Since it was made: what came in, by operation and input ("gemm_fprop.w.scales").
  [[nodiscard]] const std::map<std::string, Seen>& seen() const;
  [[nodiscard]] int changed() const;  // calls
  [[nodiscard]] int refused() const;  // changed calls that did not return OK

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dropless::sensitivity
