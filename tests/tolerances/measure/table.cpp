// SPDX-License-Identifier: Apache-2.0
// The proofs and the rules as rows, for the command line.
#include "conformance/adapters/measured_bounds.h"
#include "tests/tolerances/measure/proof.h"
#include "tests/tolerances/measure/statistics.h"

namespace dropless::conformance {

std::vector<MeasuredBound> measured_bounds() {
  std::vector<MeasuredBound> rows;
  for (const tolerances::Proof& proof : tolerances::all_proofs()) {
    const tolerances::Gate gate = proof.measure(1);
    MeasuredBound row;
    row.bound = proof.bound, row.derivation = proof.anchor;
    row.honest = gate.honest(), row.honest_name = gate.honest_name();
    row.fault = gate.smallest_fault(), row.fault_name = gate.smallest_fault_name();
    row.size_class = proof.size_class;
    row.elements = gate.elements();
    row.complaint = gate.complaints();
    if (!gate.sees(proof.size_class)) row.complaint += "does not see " + proof.size_class;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<MeasuredRule> measured_rules(std::int64_t runs) {
  std::vector<MeasuredRule> rows;
  for (const tolerances::Rule& rule : tolerances::statistical_rules()) {
    const tolerances::FalseAlarms found = rule.simulate(runs);
    const tolerances::Confidence interval = tolerances::confidence_of(found);
    rows.push_back({rule.name, rule.threshold, rule.in_use, rule.nominal, found.alarms, found.runs,
                    interval.low, interval.high, found.largest});
  }
  return rows;
}

}  // namespace dropless::conformance
