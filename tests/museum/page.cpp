// SPDX-License-Identifier: Apache-2.0
// What is said about the checks, with the numbers.
#include "tests/museum/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tests/museum/checks.h"

namespace dropless::museum {
namespace {

using conformance::FaultEntry;

constexpr std::size_t examples_per_stage = 4;

constexpr const char* introduction =
    R"(# What common checks let through

This page is written by `dropless museum --update docs/museum.md`. It takes the planted faults that a CPU can
show (`dropless faults --list`; each is a small change after a public report) and asks of several checks in
common use whether they would have noticed, on the same tensors that the suite judges. It is about the checks,
not about the projects that use them: a loose check may be the right one for its purpose, such as telling
a broken build from a working one in seconds.

## How it is computed

For every fault the cases of the suite are run in the order in which the fault is hunted, in the smoke tier and,
if none fails there, in the standard tier. Up to five cases that fail by our verdict are kept: the *same data*. In
each of them every comparison of a tensor is recorded: the values that the reference expects and the values of the
faulty implementation, for the elements that the suite judges. A check **sees** the fault if in one of these
comparisons it rejects the faulty values and accepts those of the correct implementation; otherwise it lets the
fault through. Ranks are threads of one process, and each rank's comparisons count. The *typical data* are a few cases of the stage's plain families, with zero-mean random numbers
(where a family knows regimes), a balanced load, no padding, no mask, contiguous rows, four ranks where there are
ranks.

The checks:

)";

constexpr const char* rules = R"(
Where a tensor holds integers (ids, counts, offsets, row maps, scale bytes) every check is an equality, so that
faults that change integers alone are seen by all of them, also where the suite judges ids by a relation, since
several may be right. NaN equals NaN. `ours` is the verdict of the whole case: element-wise bounds, relations, refusals, and guards around the memory.

)";

constexpr const char* limits = R"(
## What it does not say

* The cases of the suite are chosen to show faults. A check that sees a fault on the same data may miss it on
  its own data; the second table is a hint of how much, for one choice of such data.
* The faults are those that we know of and planted. They are not a sample of the faults that people make.
* A check is applied to each compared tensor by itself. In a test that only looks at the end of a chain, at the loss
  or at the output of a layer, less is seen than here.
* `ours` has been developed with these faults at hand, the other checks have not. Our figure is therefore no
  measurement of a rate; that it is zero on the same data is true by construction, since the cases are chosen by it.
)";

struct Row {
  std::string stage;
  std::size_t faults = 0, shown = 0, ours = 0;
  std::vector<std::size_t> missed = std::vector<std::size_t>(common_checks().size(), 0);
};

using Side = Sight Exhibit::*;

std::vector<Row> rows_of(const std::vector<FaultEntry>& faults,
                         const std::vector<Exhibit>& exhibits, Side side) {
  std::vector<Row> rows;
  Row total;
  total.stage = "all";
  const auto count = [&](Row& row, const Sight& sight) {
    ++row.faults;
    const bool there = side == &Exhibit::typical || sight.visible;
    if (!there) return;
    ++row.shown;
    row.ours += sight.ours ? 0 : 1;
    for (std::size_t i = 0; i < row.missed.size(); ++i) row.missed[i] += sight.sees[i] ? 0 : 1;
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (!exhibits[i].trouble.empty()) continue;
    const std::string stage = faults[i].stage();
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const Row& known) { return known.stage == stage; });
    if (row == rows.end()) {
      rows.emplace_back();
      rows.back().stage = stage;
      row = rows.end() - 1;
    }
    count(*row, exhibits[i].*side);
    count(total, exhibits[i].*side);
  }
  rows.push_back(total);
  return rows;
}

std::string table(const std::vector<Row>& rows, bool typical) {
  std::string text = typical ? "| stage | faults |" : "| stage | faults | in values |";
  std::string rule = typical ? "|---|---:|" : "|---|---:|---:|";
  for (const CommonCheck& check : common_checks()) {
    text += " " + check.name + " |", rule += "---:|";
  }
  text += " ours |\n" + rule + "---:|\n";
  for (const Row& row : rows) {
    text += typical ? fmt::format("| {} | {} |", row.stage, row.faults)
                    : fmt::format("| {} | {} | {} |", row.stage, row.faults, row.shown);
    for (const std::size_t missed : row.missed) text += fmt::format(" {} |", missed);
    text += fmt::format(" {} |\n", row.ours);
  }
  return text;
}

std::size_t blind(const Sight& sight) {
  return static_cast<std::size_t>(std::count(sight.sees.begin(), sight.sees.end(), false));
}

std::string seen_by(const Sight& sight) {
  std::string names;
  for (std::size_t i = 0; i < sight.sees.size(); ++i) {
    if (sight.sees[i]) names += (names.empty() ? "" : "; ") + common_checks()[i].name;
  }
  return names.empty() ? "none" : blind(sight) == 0 ? "all" : names;
}

// The faults of a stage that most checks let through on the same data.
std::string examples(const std::vector<FaultEntry>& faults, const std::vector<Exhibit>& exhibits) {
  std::map<std::string, std::vector<std::size_t>> by_stage;
  std::vector<std::string> stages;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const bool telling = exhibits[i].trouble.empty() && exhibits[i].same_data.visible &&
                         exhibits[i].same_data.ours && blind(exhibits[i].same_data) > 0;
    if (!telling) continue;
    const std::string stage = faults[i].stage();
    if (by_stage.count(stage) == 0) stages.push_back(stage);
    by_stage[stage].push_back(i);
  }
  std::string text =
      "| fault | symptom | after | seen on the same data by | on typical data by | our clause |\n"
      "|---|---|---|---|---|---|\n";
  for (const std::string& stage : stages) {
    std::vector<std::size_t>& indices = by_stage[stage];
    std::stable_sort(indices.begin(), indices.end(), [&](std::size_t a, std::size_t b) {
      return blind(exhibits[a].same_data) > blind(exhibits[b].same_data);
    });
    for (std::size_t i = 0; i < std::min(indices.size(), examples_per_stage); ++i) {
      const FaultEntry& fault = faults[indices[i]];
      const Exhibit& exhibit = exhibits[indices[i]];
      text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", fault.name, fault.symptom,
                          fault.provenance, seen_by(exhibit.same_data), seen_by(exhibit.typical),
                          exhibit.clause);
    }
  }
  return text;
}

std::string without_result(const std::vector<FaultEntry>& faults,
                           const std::vector<Exhibit>& exhibits) {
  std::string text;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (exhibits[i].trouble.empty()) continue;
    text += fmt::format("* {}: {}\n", faults[i].name, exhibits[i].trouble);
  }
  if (text.empty()) return "";
  return "\nFaults without a result, which are in no table:\n\n" + text;
}

}  // namespace

std::string page(const std::vector<FaultEntry>& faults, const std::vector<Exhibit>& exhibits) {
  std::string text = introduction;
  for (const CommonCheck& check : common_checks()) {
    text += fmt::format("* **{}**: {}.\n", check.name, check.meaning);
  }
  text += rules;
  const auto same = rows_of(faults, exhibits, &Exhibit::same_data);
  const auto typical = rows_of(faults, exhibits, &Exhibit::typical);
  const Row& all = same.back();
  text += "The stages on this page: ";
  for (std::size_t i = 0; i + 1 < same.size(); ++i) text += (i == 0 ? "" : ", ") + same[i].stage;
  text += ".\n\n## Faults let through on the same data\n\n";
  text += fmt::format(
      "Of {} faults, {} change a value that is compared in a failing case; only these are counted. "
      "The "
      "others show in\nrefusals, relations or guards, or in values that a case compares with "
      "another run. Smaller is better.\n\n",
      all.faults, all.shown);
  text += table(same, false);
  text +=
      "\n## Faults let through on typical data\n\nAll faults are counted, smaller is better. "
      "`ours` is our verdict on the same typical cases.\n\n";
  text += table(typical, true);
  text +=
      "\n## Telling examples\n\nThe faults of each stage that most of the checks let through on "
      "the same data.\n\n";
  text += examples(faults, exhibits);
  text += without_result(faults, exhibits);
  text += limits;
  return text;
}

}  // namespace dropless::museum
