// SPDX-License-Identifier: Apache-2.0
// Faults of the router's forward pass.
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

void add_routing(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.tie_rule_reversed",
                    .provenance = "flashinfer 4052",
                    .symptom = "of equal scores the last expert wins",
                    .trigger = "equal logits",
                    .clauses = {"ROUTING-5b"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.tie_rule = DROPLESS_TIE_HIGHEST_INDEX; });
                    }});
}

}  // namespace dropless::faults
