// SPDX-License-Identifier: Apache-2.0
// A rank process of this machine, started by this process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conformance/ranks/link.h"
#include "conformance/runner/child.h"

namespace dropless::conformance {

class LocalRank {
 public:
  LocalRank(const std::vector<std::string>& arguments, ProcessGroup group);
  Link& link() { return link_; }
  [[nodiscard]] int output() const { return child_.output(); }

  std::vector<std::string> take_lines() { return link_.take_lines(); }
  std::string take_output() { return child_.take_output(); }
  // How it ended, told once, after its last line has been taken.
  std::optional<std::string> ended();

 private:
  Child child_;
  Link link_;
  bool told_ = false;
};

}  // namespace dropless::conformance
