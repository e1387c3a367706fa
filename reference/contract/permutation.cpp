// SPDX-License-Identifier: Apache-2.0
// permute_plan, permute and unpermute behind the contract.
#include "reference/permutation.h"

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/operations.h"
#include "reference/contract/rows.h"

namespace dropless::reference::contract {
namespace {

std::string number(Index value) {
  return std::to_string(value);
}

// A plan as the tensors of a call describe it. Throws Refused unless row_map and source are
// inverse to each other (PERMUTATION-2): everything after may then follow them blindly.
PermutePlan plan_of(const dropless_tensor* offsets, const dropless_tensor* row_map,
                    const dropless_tensor* source) {
  const TensorView map = tensor(row_map, "row_map", Element::i64, {kAny, kAny});
  const TensorView source_view = tensor(source, "source", Element::i64, {kAny});
  if (offsets == nullptr) throw Refused("offsets is null");
  const CallGroups groups(offsets, nullptr, kAny, source_view.shape(0));
  PermutePlan plan;
  plan.tokens = map.shape(0);
  plan.top_k = map.shape(1);
  const Indices offset_values = groups.groups().offsets;
  plan.offsets.assign(offset_values.begin(), offset_values.end());
  plan.num_experts = static_cast<Index>(plan.offsets.size()) - 1;
  plan.row_map = read_integers(map);
  // Beyond the last zone source holds nothing (PERMUTATION-8).
  for (Index row = 0; row < plan.rows(); ++row) {
    plan.source.push_back(source_view.load_integer(row));
  }
  const Index pairs = plan.tokens * plan.top_k;
  for (Index row = 0; row < plan.rows(); ++row) {
    const Index pair = plan.source[at(row)];
    if (pair < -1 || pair >= pairs || (pair >= 0 && plan.row_map[at(pair)] != row)) {
      throw Refused("source[" + number(row) + "] = " + number(pair) +
                    " is not the inverse of row_map");
    }
  }
  for (Index pair = 0; pair < pairs; ++pair) {
    const Index row = plan.row_map[at(pair)];
    if (row < -1 || row >= plan.rows() || (row >= 0 && plan.source[at(row)] != pair)) {
      throw Refused("row_map[" + number(pair) + "] = " + number(row) +
                    " is not the inverse of source");
    }
  }
  return plan;
}

// A plan from row_map alone, for the ways back; `rows` is the length of the row buffer.
PermutePlan plan_of(const dropless_tensor* row_map, Index rows) {
  const TensorView map = tensor(row_map, "row_map", Element::i64, {kAny, kAny});
  PermutePlan plan;
  plan.tokens = map.shape(0);
  plan.top_k = map.shape(1);
  plan.offsets = {0, rows};
  plan.row_map = read_integers(map);
  std::vector<bool> used(at(rows), false);
  for (std::size_t pair = 0; pair < plan.row_map.size(); ++pair) {
    const Index row = plan.row_map[pair];
    if (row == -1) continue;
    if (row < 0 || row >= rows || used[at(row)]) {
      throw Refused("row_map[" + std::to_string(pair) + "] = " + number(row) +
                    (row >= 0 && row < rows ? " repeats a row" : " is outside the row buffer"));
    }
    used[at(row)] = true;
  }
  return plan;
}

}  // namespace

void permute_plan(const dropless_profile& profile, dropless_permute_plan_args* args) {
  const dropless_permute_plan_args a = completed(args, "arguments");
  if (a.num_experts < 0) throw Refused("num_experts = " + number(a.num_experts) + " is negative");
  const TensorView ids = tensor(a.ids, "ids", Element::id, {kAny, kAny});
  const Index tokens = ids.shape(0), top_k = ids.shape(1);
  const TensorView counts =
      tensor(a.tokens_per_expert, "tokens_per_expert", Element::i64, {a.num_experts});
  const TensorView offsets = tensor(a.offsets, "offsets", Element::i64, {a.num_experts + 1});
  const TensorView row_map = tensor(a.row_map, "row_map", Element::i64, {tokens, top_k});
  const TensorView source = tensor(a.source, "source", Element::i64, {kAny});
  const TensorView demand = tensor(a.demand, "demand", Element::i64, {1});

  const PermutePlan plan = reference::permute_plan(profile, tokens, top_k, a.num_experts,
                                                   read_integers(ids), a.row_capacity);
  if (source.shape(0) < plan.rows()) {
    throw Refused("source holds " + number(source.shape(0)) + " rows, " + number(plan.rows()) +
                  " are needed");
  }
  write_integers(counts, plan.tokens_per_expert);
  write_integers(offsets, plan.offsets);
  write_integers(row_map, plan.row_map);
  for (Index row = 0; row < plan.rows(); ++row) source.store_integer(plan.source[at(row)], row);
  for (Index row = plan.rows(); row < source.shape(0); ++row) {
    if (profile.tail_rows == DROPLESS_TAIL_ZERO) source.store_integer(-1, row);
  }
  demand.store_integer(plan.demand, 0);
}

void permute_forward(const dropless_profile& profile, dropless_permute_args* args) {
  const dropless_permute_args a = completed(args, "arguments");
  const PermutePlan plan = plan_of(a.offsets, a.row_map, a.source);
  const Index max_rows = a.source->shape[0];
  const TensorView x = tensor(a.x, "x", Element::any, {plan.tokens, kAny});
  const TensorView rows = tensor(a.rows, "rows", Element::any, {max_rows, x.shape(1)});
  if (rows.dtype() != x.dtype()) throw Refused("rows has another dtype than x");
  check_pair(a.weights, "weights", a.row_weights, "row_weights");
  const auto weights =
      optional_tensor(a.weights, "weights", Element::fp32, {plan.tokens, plan.top_k});
  const auto row_weights = optional_tensor(a.row_weights, "row_weights", Element::fp32, {max_rows});
  check_pair(a.scales, "scales", a.row_scales, "row_scales");
  const auto scales = optional_tensor(a.scales, "scales", Element::byte, {plan.tokens, kAny});
  const auto row_scales = optional_tensor(a.row_scales, "row_scales", Element::byte,
                                          {max_rows, scales ? scales->shape(1) : kAny});
  if (scales && row_scales->dtype() != scales->dtype()) {
    throw Refused("row_scales has another dtype than scales");
  }

  const auto row_bytes = [](const TensorView& view) {
    return at(view.shape(1)) * static_cast<std::size_t>(element_bytes(view.dtype()));
  };
  const std::vector<std::byte> row_data = permute(plan, read_raw(x), row_bytes(x));
  std::vector<std::byte> weight_data, scale_data;
  if (weights) weight_data = permute_slots(plan, read_raw(*weights), sizeof(float));
  if (scales) scale_data = permute(plan, read_raw(*scales), row_bytes(*scales));

  write_row_bytes(rows, row_data, profile);
  if (weights) write_row_bytes(*row_weights, weight_data, profile);
  if (scales) write_row_bytes(*row_scales, scale_data, profile);
}

void permute_backward(const dropless_profile&, dropless_permute_backward_args* args) {
  const dropless_permute_backward_args a = completed(args, "arguments");
  const TensorView d_rows = tensor(a.d_rows, "d_rows", Element::real, {kAny, kAny});
  const Index max_rows = d_rows.shape(0), hidden = d_rows.shape(1);
  const PermutePlan plan = plan_of(a.row_map, max_rows);
  const TensorView d_x = tensor(a.d_x, "d_x", Element::real, {plan.tokens, hidden});
  check_pair(a.d_row_weights, "d_row_weights", a.d_weights, "d_weights");
  const auto d_row_weights =
      optional_tensor(a.d_row_weights, "d_row_weights", Element::fp32, {max_rows});
  const auto d_weights =
      optional_tensor(a.d_weights, "d_weights", Element::fp32, {plan.tokens, plan.top_k});

  const Gauged gradient = reference::permute_backward(plan, hidden, read_values(d_rows));
  const Doubles weight_gradient =
      d_weights ? permute_weights_backward(plan, read_values(d_row_weights)) : Doubles{};
  write_values(d_x, gradient.value);
  if (d_weights) write_values(*d_weights, weight_gradient);
}

void unpermute_forward(const dropless_profile&, dropless_unpermute_args* args) {
  const dropless_unpermute_args a = completed(args, "arguments");
  const TensorView rows = tensor(a.rows, "rows", Element::real, {kAny, kAny});
  const Index hidden = rows.shape(1);
  const PermutePlan plan = plan_of(a.row_map, rows.shape(0));
  const auto weights =
      optional_tensor(a.weights, "weights", Element::fp32, {plan.tokens, plan.top_k});
  const TensorView y = tensor(a.y, "y", Element::real, {plan.tokens, hidden});
  write_values(y, unpermute(plan, hidden, read_values(rows), read_values(weights)).value);
}

void unpermute_backward(const dropless_profile& profile, dropless_unpermute_backward_args* args) {
  const dropless_unpermute_backward_args a = completed(args, "arguments");
  const PermutePlan plan = plan_of(a.offsets, a.row_map, a.source);
  const Index max_rows = a.source->shape[0];
  const TensorView d_y = tensor(a.d_y, "d_y", Element::real, {plan.tokens, kAny});
  const Index hidden = d_y.shape(1);
  check_pair(a.weights, "weights", a.d_weights, "d_weights");
  const auto weights =
      optional_tensor(a.weights, "weights", Element::fp32, {plan.tokens, plan.top_k});
  const auto d_weights =
      optional_tensor(a.d_weights, "d_weights", Element::fp32, {plan.tokens, plan.top_k});
  if (weights && a.rows == nullptr) throw Refused("rows is null although weights is given");
  const auto rows = optional_tensor(a.rows, "rows", Element::real, {max_rows, hidden});
  const TensorView d_rows = tensor(a.d_rows, "d_rows", Element::real, {max_rows, hidden});

  const UnpermuteGradient gradient = reference::unpermute_backward(
      plan, hidden, read_values(rows), read_values(weights), read_values(d_y));
  std::vector<RowKind> kinds(at(max_rows), RowKind::tail);
  for (Index row = 0; row < plan.rows(); ++row) {
    kinds[at(row)] = plan.source[at(row)] >= 0 ? RowKind::real : RowKind::padding;
  }
  write_rows(d_rows, gradient.d_rows.value, kinds, profile);
  if (d_weights) write_values(*d_weights, gradient.d_weights.value);
}

}  // namespace dropless::reference::contract
