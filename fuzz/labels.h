// SPDX-License-Identifier: Apache-2.0
// What the drawn cases were like, and what they must have been like for a run to mean anything: a
// fuzzer that never draws an empty expert passes everything that forgets them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fuzz/sizes.h"

namespace dropless::fuzz {

// Facts about one case: "an expert without rows", "rows at a tile edge", "bf16", "stage layer"...
std::vector<std::string> labels_of(const Family& family, const CaseId& id);

// Among the cases with the label `among`, at least this share must have `label`.
struct Requirement {
  std::string label, among;
  double share = 0;
};
// For a run over these families: fixed shares for loads, sizes, dtypes, data and strides, and half
// of its fair share for every stage and family.
std::vector<Requirement> requirements_for(const std::vector<const Family*>& families);

class Tally {
 public:
  void add(const Family& family, const CaseId& id);

  [[nodiscard]] std::int64_t cases() const { return count("cases"); }
  [[nodiscard]] std::int64_t count(const std::string& label) const;

  // A requirement is missed when the count is more than four standard deviations below what the
  // share would give (a run that draws at exactly the share errs in 1 of 30,000 requirements).
  [[nodiscard]] bool meets(const Requirement& requirement) const;

 private:
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace dropless::fuzz
