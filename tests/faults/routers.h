// SPDX-License-Identifier: Apache-2.0
// What routing faults share: the router's intermediate values, another selection, other weights.
#pragma once

#include <functional>
#include <span>

#include "reference/scores.h"
#include "reference/selection.h"
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

// Parts of the stage, one function per file.
void add_routing_selection(std::vector<Fault>& faults);
void add_routing_weights(std::vector<Fault>& faults);
void add_routing_special(std::vector<Fault>& faults);
void add_routing_backward(std::vector<Fault>& faults);

// One token of a forward call that succeeded.
struct RouterRow {
  const dropless_route_settings& settings;
  Index token;
  std::vector<double> logits, scores, compared;  // [E]
  std::vector<std::uint8_t> experts;             // [E], 0 = masked
  std::vector<std::uint8_t> kept;                // [G], empty without groups
  std::vector<Index> ids;                        // [K] the right ones

  // The K best of other values, among the kept groups or among all.
  [[nodiscard]] std::vector<Index> best(const std::vector<double>& values,
                                        bool in_kept_groups = true) const;
  [[nodiscard]] Index group_size() const {
    return settings.num_experts / std::max<Index>(settings.num_groups, 1);
  }
};

bool has_groups(const dropless_route_settings& settings);
RouterRow row_of(const dropless_route_args& args, Index token);
// Groups with the highest scores, equal ones by the tie rule.
std::vector<std::uint8_t> kept_groups(const dropless_route_settings& settings,
                                      const std::vector<double>& group_scores,
                                      int tie_rule = DROPLESS_TIE_LOWEST_INDEX);

// Ids of one token: K of them.
using Choice = std::function<std::vector<Index>(const RouterRow&)>;
// The router selects what `choose` says, in every row that is neither masked nor undefined; weights
// and counts follow from that selection. Given ids are left alone.
void select_otherwise(Planted& planted, Choice choose);

// weight = change(weight, row, slot), for every slot with an expert, after the call.
using WeightChange = std::function<double(double, const RouterRow&, Index)>;
void change_weights(Planted& planted, WeightChange change);

// Other settings in the forward call, in the backward call, or in both.
using SettingsChange = std::function<void(dropless_route_settings&)>;
void change_forward_settings(Planted& planted, SettingsChange change);
void change_backward_settings(Planted& planted, SettingsChange change);

// Legal requests stay legal: softmax over the selected K excludes much (GENERAL-3).
bool over_selected(const dropless_route_settings& settings);

}  // namespace dropless::faults
