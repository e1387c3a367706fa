// SPDX-License-Identifier: Apache-2.0
// Rows of a router call, and the ways to change them.
#include "tests/faults/routers.h"

#include <cmath>

namespace dropless::faults {

namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

bool is_masked(const dropless_route_args& args, Index token) {
  return args.token_mask != nullptr && view(args.token_mask).load_integer(token) == 0;
}

template <class Args>
dropless_status with_settings(const auto& next, Args& args, const SettingsChange& change) {
  if (args.settings == nullptr || args.settings->struct_size < sizeof(dropless_route_settings)) {
    return next(args);
  }
  dropless_route_settings settings = *args.settings;
  change(settings);
  args.settings = &settings;
  return next(args);
}

}  // namespace

bool has_groups(const dropless_route_settings& settings) {
  return settings.num_groups > 1;
}

bool over_selected(const dropless_route_settings& settings) {
  return settings.score_function == DROPLESS_SCORE_SOFTMAX &&
         settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
}

std::vector<Index> RouterRow::best(const std::vector<double>& values, bool in_kept_groups) const {
  return reference::top_k(*correct().profile, settings.top_k, values, experts,
                          in_kept_groups ? reference::Mask(kept) : reference::Mask{});
}

std::vector<std::uint8_t> kept_groups(const dropless_route_settings& settings,
                                      const std::vector<double>& group_scores, int tie_rule) {
  const auto& profile =
      *correct([tie_rule](dropless_profile& p) { p.tie_rule = tie_rule; }).profile;
  std::vector<std::uint8_t> kept(group_scores.size(), 0);
  const std::vector<Index> order = reference::ranking(profile, group_scores);
  for (Index i = 0; i < settings.kept_groups; ++i) kept[at(order[at(i)])] = 1;
  return kept;
}

RouterRow row_of(const dropless_route_args& args, Index token) {
  RouterRow row{*args.settings, token, {}, {}, {}, {}, {}, {}};
  const TensorView logits = view(args.logits);
  for (Index e = 0; e < logits.shape(1); ++e) row.logits.push_back(logits.load(token, e));
  row.scores = reference::scores(row.settings.score_function, row.logits);
  const std::vector<double> bias = values_of(args.expert_bias);
  row.compared = reference::selection_scores(row.settings, row.logits, row.scores, bias);
  row.experts = reference::expert_mask(row.logits);
  if (has_groups(row.settings)) {
    row.kept = kept_groups(row.settings,
                           reference::group_scores(row.settings, *correct().profile, row.compared));
  }
  for (Index j = 0; j < row.settings.top_k; ++j) {
    row.ids.push_back(view(args.ids).load_integer(token, j));
  }
  return row;
}

void select_otherwise(Planted& planted, Choice choose) {
  planted.around<&Table::route_forward>([choose](const auto& next, auto& a) -> dropless_status {
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || a.given_ids != nullptr) return status;
    Copy chosen(a.ids);
    for (Index t = 0; t < view(a.ids).shape(0); ++t) {
      if (is_masked(a, t)) continue;
      const RouterRow row = row_of(a, t);
      if (reference::is_undefined_row(row.settings.score_function, row.logits)) continue;
      const std::vector<Index> ids = choose(row);
      for (Index j = 0; j < row.settings.top_k; ++j) {
        chosen.elements().store_integer(ids[at(j)], t, j);
      }
    }
    dropless_route_args b = a;
    b.given_ids = chosen.tensor();
    return next(b);
  });
}

void change_weights(Planted& planted, WeightChange change) {
  planted.after<&Table::route_forward>([change](auto& a) {
    for (Index t = 0; t < view(a.ids).shape(0); ++t) {
      if (is_masked(a, t)) continue;
      const RouterRow row = row_of(a, t);
      for (Index j = 0; j < row.settings.top_k; ++j) {
        if (row.ids[at(j)] < 0) continue;
        const double weight = view(a.weights).load(t, j);
        view(a.weights).store(change(weight, row, j), t, j);
      }
    }
  });
}

void change_forward_settings(Planted& planted, SettingsChange change) {
  planted.around<&Table::route_forward>(
      [change](const auto& next, auto& a) { return with_settings(next, a, change); });
}

void change_backward_settings(Planted& planted, SettingsChange change) {
  planted.around<&Table::route_backward>(
      [change](const auto& next, auto& a) { return with_settings(next, a, change); });
}

}  // namespace dropless::faults
