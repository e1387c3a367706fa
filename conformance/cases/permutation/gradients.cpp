// SPDX-License-Identifier: Apache-2.0
// Backward passes of permute and unpermute: PERMUTATION-7, 3c and 8.
#include <cmath>

#include "conformance/cases/data.h"
#include "conformance/cases/permutation/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/bounds.h"

namespace dropless::conformance {
namespace {

dropless_dtype float_dtype(const std::string& word) {
  return word == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
}

std::vector<double> sum_errors(const reference::Gauged& expected, Index terms, bool exact) {
  std::vector<double> errors(expected.value.size(), 0.0);
  for (std::size_t i = 0; !exact && i < errors.size(); ++i) {
    errors[i] = tolerances::sum(terms, expected.gauge[i]);
  }
  return errors;
}

std::vector<double> zero_padding(const RoutedTokens& routed, Index columns,
                                 std::vector<double> rows) {
  for (Index row = 0; row < routed.plan.rows(); ++row) {
    if (routed.plan.source[static_cast<std::size_t>(row)] >= 0) continue;
    std::fill_n(rows.begin() + row * columns, columns, 0.0);
  }
  return rows;
}

std::vector<double> extended(const std::vector<double>& values, const Buffer& buffer) {
  std::vector<double> longer = values;
  longer.resize(static_cast<std::size_t>(buffer.size()), 0.0);
  return longer;
}

void run_permute_backward(CaseRun& run) {
  const RoutedTokens routed = routed_tokens(run, 0.1);
  const bool exact = run.word("data") == "exact";
  const dropless_dtype dtype = float_dtype(run.word("dtype"));
  Random random = run.random("d_rows");
  const auto values = cotangent(run.word("data"), dtype, routed.plan.rows(), routed.hidden, random);
  const auto travelled = cotangent(run.word("data"), DROPLESS_FP32, routed.plan.rows(), 1, random);
  Buffers& buffers = run.buffers();
  Buffer& row_map = buffers.input("row_map", DROPLESS_I64, routed.slots(), routed.plan.row_map);
  Buffer& d_rows = buffers.input("d_rows", dtype, routed.expert_rows(),
                                 with_hostile_padding(routed, routed.hidden, values));
  Buffer& d_row_weights = buffers.input("d_row_weights", DROPLESS_FP32, {routed.length},
                                        with_hostile_padding(routed, 1, travelled));
  Buffer& d_x = buffers.output("d_x", dtype, routed.token_rows());
  Buffer& d_weights = buffers.output("d_weights", DROPLESS_FP32, routed.slots());
  auto args = make_args<dropless_permute_backward_args>();
  args.row_map = row_map.tensor(), args.d_rows = d_rows.tensor(), args.d_x = d_x.tensor();
  args.d_row_weights = d_row_weights.tensor(), args.d_weights = d_weights.tensor();
  run.perform("permute_backward", run.implementation().permute_backward, args,
              routed.tokens == 0 ? "GENERAL-4" : "GENERAL-1");

  const auto expected = reference::permute_backward(routed.plan, routed.hidden,
                                                    zero_padding(routed, routed.hidden, values));
  run.judge().bounded("PERMUTATION-7a", "d_x", d_x, expected.value,
                      sum_errors(expected, routed.top_k, exact));
  run.judge().exact("PERMUTATION-7a", "d_weights", d_weights,
                    reference::permute_weights_backward(routed.plan, travelled));
  run.judge().require(values.size() < 16 || trust::distinct(values) > 1,
                      "the cotangent is not uniform");
  if (routed.tokens == 0) {
    // Every output is empty: that the call came back with OK is all there is to see.
    run.judge().holds("GENERAL-4", "status of a call with no tokens", true, "OK", "OK");
  }
  demand_variety(run, expected.value, routed.real_rows() * routed.hidden,
                 "gradients differ from each other");
}

// The values of slots with an expert, of [T,K].
std::vector<double> of_routed(const RoutedTokens& routed, const std::vector<double>& values) {
  std::vector<double> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (routed.ids[i] >= 0) out.push_back(values[i]);
  }
  return out;
}

void run_unpermute_backward(CaseRun& run) {
  const RoutedTokens routed = routed_tokens(run, 0.1);
  const bool exact = run.word("data") == "exact";
  const bool weighted = run.word("weights") == "given";
  const dropless_dtype dtype = float_dtype(run.word("dtype"));
  Random random = run.random("data");
  std::vector<double> dy, values, weights(weighted ? routed.ids.size() : 0);
  reference::UnpermuteGradient expected;
  // Weight gradients must differ from each other; a few dot products of integers may be equal.
  const Index variety = std::min<Index>(routed.real_rows(), 3);
  bool varies = false;
  for (int attempt = 0; attempt < 20 && !varies; ++attempt) {
    dy = cotangent(run.word("data"), dtype, routed.tokens, routed.hidden, random);
    values = cotangent(run.word("data"), dtype, routed.plan.rows(), routed.hidden, random);
    for (double& w : weights) {
      w = exact ? static_cast<double>(random.between(1, 15)) / 8
                : static_cast<double>(static_cast<float>(random.uniform() + 0.03125));
    }
    expected = reference::unpermute_backward(
        routed.plan, routed.hidden, zero_padding(routed, routed.hidden, values), weights, dy);
    varies = !weighted || trust::distinct(of_routed(routed, expected.d_weights.value)) >= variety;
  }
  run.judge().require(varies, "weight gradients differ from each other");
  Buffers& buffers = run.buffers();
  const PlanInputs plan = plan_inputs(run, routed);
  Buffer& d_y = buffers.input("d_y", dtype, routed.token_rows(), dy);
  Buffer& rows = buffers.input("rows", dtype, routed.expert_rows(),
                               with_hostile_padding(routed, routed.hidden, values));
  Buffer& w = buffers.input("weights", DROPLESS_FP32, routed.slots(),
                            weighted ? weights : std::vector<double>(routed.ids.size(), 1.0));
  Buffer& d_rows = buffers.output("d_rows", dtype, routed.expert_rows());
  Buffer& d_weights = buffers.output("d_weights", DROPLESS_FP32, routed.slots());
  auto args = make_args<dropless_unpermute_backward_args>();
  args.offsets = plan.offsets->tensor(), args.row_map = plan.row_map->tensor();
  args.source = plan.source->tensor(), args.d_y = d_y.tensor(), args.d_rows = d_rows.tensor();
  if (weighted) {
    args.rows = rows.tensor(), args.weights = w.tensor(), args.d_weights = d_weights.tensor();
  }
  run.perform("unpermute_backward", run.implementation().unpermute_backward, args);

  Judged real = zone_elements(routed, routed.hidden);
  const Judged padding = padding_elements(routed, routed.hidden);
  for (std::size_t i = 0; i < real.size(); ++i) real[i] = real[i] && !padding[i];
  const auto d_rows_expected = extended(expected.d_rows.value, d_rows);
  // One fp32 product, then the output rounding.
  auto errors = extended(sum_errors(expected.d_rows, 1, exact), d_rows);
  run.judge().bounded("PERMUTATION-7b", "d_rows", d_rows, d_rows_expected, errors, real);
  run.judge().exact("PERMUTATION-7c", "padding of d_rows", d_rows, d_rows_expected, padding);
  judge_tail(run, "d_rows", routed, d_rows);
  run.judge().require(dy.size() < 16 || trust::distinct(dy) > 1, "the cotangent is not uniform");
  if (!weighted) return;
  Judged routed_slots(routed.ids.size()), empty_slots(routed.ids.size());
  for (std::size_t i = 0; i < routed.ids.size(); ++i) {
    routed_slots[i] = routed.ids[i] >= 0, empty_slots[i] = routed.ids[i] < 0;
  }
  run.judge().bounded("PERMUTATION-7b", "d_weights", d_weights, expected.d_weights.value,
                      sum_errors(expected.d_weights, routed.hidden + 1, exact), routed_slots);
  run.judge().exact("PERMUTATION-7c", "d_weights of id -1", d_weights,
                    std::vector<double>(routed.ids.size(), 0.0), empty_slots);
}

std::vector<Values> select_gradients(Tier tier, bool weights) {
  const auto axes = [&](std::vector<std::string> names, std::vector<std::string> tokens,
                        std::vector<std::string> loads, std::vector<std::string> data,
                        std::vector<std::string> dtypes) {
    std::vector<Axis> more = {{"data", std::move(data)}, {"dtype", std::move(dtypes)}};
    if (weights) more.push_back({"weights", {"given", "none"}});
    return permutation_axes(std::move(names), std::move(tokens), std::move(loads), more);
  };
  const auto smoke =
      pairwise(axes({"deepseek-v3"}, {"65"}, {"zipf"}, {"exact", "zero_mean"}, {"bf16", "fp32"}));
  if (tier == Tier::smoke) return smoke;
  const auto standard =
      without(pairwise(axes({"deepseek-v3", "mixtral-8x7b", "gpt-oss-20b", "llama-4-scout"},
                            {"0", "1", "65", "129"},
                            {"zipf", "one_hot", "empty_last", "all_empty", "tile_edge"},
                            {"exact", "zero_mean", "same_sign", "cancelling"}, {"bf16", "fp32"})),
              smoke);
  if (tier == Tier::standard) return standard;
  return without(pairwise(axes(top_k_models(), {"511"}, load_names(), {"exact", "zero_mean"},
                               {"bf16", "fp32"})),
                 standard);
}

}  // namespace

void add_permutation_gradients(Registry& registry) {
  const Parameter data{
      "data", {"exact", "zero_mean", "same_sign", "cancelling"}, 0, 0, "data regime"};
  const Parameter dtype{"dtype", {"bf16", "fp32"}, 0, 0, "of rows and gradients"};
  registry.add({"permutation.permute_backward",
                "Proves the sum of row gradients and the way home of travelled weight gradients.",
                {"PERMUTATION-7a", "GENERAL-4"},
                permutation_parameters({data, dtype}),
                [](Tier tier) { return select_gradients(tier, false); },
                run_permute_backward});
  registry.add(
      {"permutation.unpermute_backward",
       "Proves gradients of rows and of routing weights, and that those of padding are zero.",
       {"PERMUTATION-7b", "PERMUTATION-7c", "PERMUTATION-8"},
       permutation_parameters(
           {data, dtype, {"weights", {"given", "none"}, 0, 0, "weighted or plain"}}),
       [](Tier tier) { return select_gradients(tier, true); },
       run_unpermute_backward});
}

}  // namespace dropless::conformance
