// SPDX-License-Identifier: Apache-2.0
// Failing cases on disk, written the moment they are known: a run that is killed while it shrinks
// has lost nothing.
//
//     # fail GROUPED_GEMM-5, cpu 0.1.0, fuzz seed 7: dw [3,0,0]: expected 0, got nan
//     grouped_gemm.sizes:product=wgrad,...
//
// The files are batches: `dropless run --batch FILE`.
#pragma once

#include <string>

#include "conformance/runner/outcome.h"

namespace dropless::fuzz {

class Corpus {
 public:
  // The folder is made when the first case comes. The file is <folder>/<name>.txt.
  Corpus(std::string folder, const std::string& name);

  // Appends the case and waits until the disk has it. Throws conformance::UsageError when it cannot
  // be written.
  void save(const conformance::Outcome& outcome, const std::string& note);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string folder_, path_;
};

}  // namespace dropless::fuzz
