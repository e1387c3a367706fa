// SPDX-License-Identifier: Apache-2.0
// Where the scale byte of a block stands: MXFP8-6 (linear) and MXFP8-7 (packed).
#pragma once

#include "reference/mxfp8.h"

namespace dropless::reference {

// A group together with the position of its first scale byte in the whole scale tensor.
struct ScaleGroup {
  Zone zone;
  Index base;
};

class ScaleLayout {
 public:
  // Throws Refused for an unknown direction or layout, and as zones() does.
  ScaleLayout(int direction, int scale_layout, Index rows, Index columns, const Groups& groups);

  [[nodiscard]] const std::vector<ScaleGroup>& groups() const { return groups_; }
  [[nodiscard]] Index bytes() const { return bytes_; }
  // Position of the scale of element (row, column), whose row lies in `group`.
  [[nodiscard]] Index position(const ScaleGroup& group, Index row, Index column) const;

 private:
  [[nodiscard]] Index group_bytes(const Zone& zone) const;

  bool row_wise_, packed_;
  Index columns_;
  std::vector<ScaleGroup> groups_;
  Index bytes_ = 0;
};

}  // namespace dropless::reference
