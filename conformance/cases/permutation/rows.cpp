// SPDX-License-Identifier: Apache-2.0
// Rows there and back: PERMUTATION-3b, 3c, 4, 6 and 8.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/cases/data.h"
#include "conformance/cases/permutation/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

constexpr Index kScaleBytes = 5;  // of a token, an odd number on purpose

dropless_dtype row_dtype(const std::string& word) {
  if (word == "fp32") return DROPLESS_FP32;
  if (word == "bf16") return DROPLESS_BF16;
  if (word == "fp16") return DROPLESS_FP16;
  return word == "e4m3" ? DROPLESS_E4M3 : DROPLESS_U8;
}

std::vector<std::uint8_t> random_bytes(Index count, Random random) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.below(256));
  return bytes;
}

std::vector<std::uint8_t> as_bytes(const std::vector<std::byte>& from, std::size_t size) {
  std::vector<std::uint8_t> to(size, 0);
  std::memcpy(to.data(), from.data(), std::min(from.size(), size));
  return to;
}

std::span<const std::byte> view(const std::vector<std::uint8_t>& bytes) {
  return std::as_bytes(std::span(bytes));
}

// Random bytes are every kind of value: NaN payloads, subnormals. Rows are told apart by them. -0
// is rare among them: every 17th element is one.
std::vector<std::uint8_t> hostile_bytes(Index count, std::size_t size, Random random) {
  std::vector<std::uint8_t> bytes = random_bytes(count * static_cast<Index>(size), random);
  for (std::size_t i = 0; i < bytes.size(); i += 17 * size) {
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(i), size, std::uint8_t{0});
    bytes[i + size - 1] = 0x80;
  }
  return bytes;
}

void run_copy(CaseRun& run) {
  const RoutedTokens routed = routed_tokens(run);
  const dropless_dtype dtype = row_dtype(run.word("dtype"));
  const std::size_t row_bytes = static_cast<std::size_t>(routed.hidden) * dtype_bytes(dtype);
  const Layout gaps{.row_gap = run.word("strides") == "gaps" ? 5 : 0};
  Buffers& buffers = run.buffers();

  const auto x_bytes =
      hostile_bytes(routed.tokens * routed.hidden, dtype_bytes(dtype), run.random("x"));
  std::vector<double> weights(routed.ids.size());
  Random random = run.random("weights");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = i % 5 == 3 ? 0.0 : static_cast<float>(random.uniform() + 0.01);
  }
  const auto scale_bytes = random_bytes(routed.tokens * kScaleBytes, run.random("scales"));
  const PlanInputs plan = plan_inputs(run, routed);
  Buffer& x = buffers.input("x", dtype, routed.token_rows(), x_bytes, gaps);
  Buffer& w = buffers.input("weights", DROPLESS_FP32, routed.slots(), weights);
  Buffer& s = buffers.input("scales", DROPLESS_E8M0, {routed.tokens, kScaleBytes}, scale_bytes);
  Buffer& rows = buffers.output("rows", dtype, routed.expert_rows(), gaps);
  Buffer& row_weights = buffers.output("row_weights", DROPLESS_FP32, {routed.length});
  Buffer& row_scales = buffers.output("row_scales", DROPLESS_E8M0, {routed.length, kScaleBytes},
                                      {.poison = Poison::plausible});

  auto args = make_args<dropless_permute_args>();
  args.offsets = plan.offsets->tensor(), args.row_map = plan.row_map->tensor();
  args.source = plan.source->tensor(), args.x = x.tensor(), args.rows = rows.tensor();
  if (run.word("travel") == "all") {
    args.weights = w.tensor(), args.row_weights = row_weights.tensor();
    args.scales = s.tensor(), args.row_scales = row_scales.tensor();
  }
  run.perform("permute_forward", run.implementation().permute_forward, args);

  Judge& judge = run.judge();
  const auto judge_rows = [&](std::string_view copied, std::string_view padded, const char* what,
                              const Buffer& got, const std::vector<std::byte>& expected,
                              Index columns) {
    const auto bytes =
        as_bytes(expected, static_cast<std::size_t>(got.size()) * dtype_bytes(got.dtype()));
    Judged real = zone_elements(routed, columns);
    const Judged padding = padding_elements(routed, columns);
    for (std::size_t i = 0; i < real.size(); ++i) real[i] = real[i] && !padding[i];
    judge.exact_bytes(copied, what, got, bytes, real);
    judge.exact_bytes(padded, what, got, bytes, padding);
    judge_tail(run, what, routed, got);
  };
  judge_rows("PERMUTATION-4a", "PERMUTATION-3b", "rows", rows,
             reference::permute(routed.plan, view(x_bytes), row_bytes), routed.hidden);
  if (run.word("travel") == "all") {
    const auto weight_bytes = w.bytes();
    judge_rows("PERMUTATION-4c", "PERMUTATION-3b", "row_weights", row_weights,
               reference::permute_slots(routed.plan, view(weight_bytes), 4), 1);
    judge_rows("PERMUTATION-4c", "PERMUTATION-3b", "row_scales", row_scales,
               reference::permute(routed.plan, view(scale_bytes), kScaleBytes), kScaleBytes);
    // A row whose weight is zero is a row like any other (PERMUTATION-4b).
    Judged weightless(static_cast<std::size_t>(rows.size()), false);
    for (std::size_t pair = 3; pair < routed.ids.size(); pair += 5) {
      const Index row = routed.plan.row_map[pair];
      for (Index h = 0; row >= 0 && h < routed.hidden; ++h) {
        weightless[static_cast<std::size_t>(row * routed.hidden + h)] = true;
      }
    }
    judge.exact_bytes("PERMUTATION-4b", "rows of weight zero", rows,
                      as_bytes(reference::permute(routed.plan, view(x_bytes), row_bytes),
                               static_cast<std::size_t>(rows.size()) * dtype_bytes(dtype)),
                      weightless);
  }
  if (routed.tokens > 1) {
    judge.require(
        trust::share_of_different_neighbours(x_bytes, static_cast<Index>(row_bytes)) > 0.9,
        "rows of different tokens differ");
  }
}

// Weights of the exact regime: small odd multiples of 1/8, so that products stay exact.
std::vector<double> combine_weights(CaseRun& run, const RoutedTokens& routed, bool exact) {
  Random random = run.random("weights");
  std::vector<double> weights(routed.ids.size());
  for (double& w : weights) {
    w = exact ? static_cast<double>(random.between(1, 15)) / 8
              : static_cast<double>(static_cast<float>(random.uniform() + 0.03125));
  }
  return weights;
}

void run_unpermute(CaseRun& run) {
  const RoutedTokens routed = routed_tokens(run, 0.1);
  const bool exact = run.word("data") == "exact";
  const bool weighted = run.word("weights") == "given";
  const dropless_dtype dtype = row_dtype(run.word("dtype"));
  Random random = run.random("rows");
  auto values = cotangent(run.word("data"), dtype, routed.plan.rows(), routed.hidden, random);
  std::vector<double> real = values;
  for (Index row = 0; row < routed.plan.rows(); ++row) {  // the reference never looks at padding
    if (routed.plan.source[static_cast<std::size_t>(row)] >= 0) continue;
    std::fill_n(real.begin() + row * routed.hidden, routed.hidden, 0.0);
  }
  const auto weights = weighted ? combine_weights(run, routed, exact) : std::vector<double>{};

  Buffers& buffers = run.buffers();
  const Layout gaps{.row_gap = run.word("strides") == "gaps" ? 4 : 0};
  Buffer& row_map = buffers.input("row_map", DROPLESS_I64, routed.slots(), routed.plan.row_map);
  Buffer& rows = buffers.input("rows", dtype, routed.expert_rows(),
                               with_hostile_padding(routed, routed.hidden, values), gaps);
  Buffer& w = buffers.input("weights", DROPLESS_FP32, routed.slots(),
                            weighted ? weights : std::vector<double>(routed.ids.size(), 1.0));
  Buffer& y = buffers.output("y", dtype, routed.token_rows(), gaps);
  auto args = make_args<dropless_unpermute_args>();
  args.row_map = row_map.tensor(), args.rows = rows.tensor(), args.y = y.tensor();
  args.weights = weighted ? w.tensor() : nullptr;
  run.perform("unpermute_forward", run.implementation().unpermute_forward, args);

  const reference::Gauged expected =
      reference::unpermute(routed.plan, routed.hidden, real, weights);
  std::vector<double> errors(expected.value.size(), 0.0);
  for (std::size_t i = 0; !exact && i < errors.size(); ++i) {
    errors[i] = tolerances::sum(routed.top_k, expected.gauge[i]);
  }
  run.judge().bounded(exact ? "PERMUTATION-6b" : "PERMUTATION-6a", "y", y, expected.value, errors);
  // NaN of padding and tail must not arrive anywhere (PERMUTATION-3c).
  Index poisoned = 0;
  for (const double v : y.values()) poisoned += std::isnan(v) ? 1 : 0;
  run.judge().holds("PERMUTATION-3c", "NaN in y", poisoned == 0, "none",
                    std::to_string(poisoned) + " elements");
  demand_variety(run, expected.value, routed.real_rows() * routed.hidden,
                 "outputs differ from each other");
}

std::vector<Values> select_copies(Tier tier) {
  const auto smoke =
      product(permutation_axes({"deepseek-v3", "gpt-oss-20b"}, {"65"}, {"zipf", "empty_first"},
                               {{"dtype", {"bf16"}}, {"travel", {"all"}}, {"strides", {"dense"}}}));
  if (tier == Tier::smoke) return smoke;
  const std::vector<Axis> more = {{"dtype", {"fp32", "bf16", "fp16", "e4m3", "u8"}},
                                  {"travel", {"all", "rows_only"}},
                                  {"strides", {"dense", "gaps"}}};
  const auto standard =
      without(pairwise(permutation_axes({"deepseek-v3", "mixtral-8x7b", "qwen3-30b-a3b",
                                         "nemotron-3-nano-30b-a3b", "llama-4-maverick"},
                                        {"0", "1", "33", "130"}, load_names(), more)),
              smoke);
  if (tier == Tier::standard) return standard;
  return without(pairwise(permutation_axes(top_k_models(), {"511"}, load_names(), more)), standard);
}

std::vector<Values> select_unpermutes(Tier tier) {
  const auto smoke = product(permutation_axes({"deepseek-v3", "mixtral-8x7b"}, {"65"}, {"zipf"},
                                              {{"data", {"exact", "zero_mean"}},
                                               {"weights", {"given"}},
                                               {"dtype", {"bf16"}},
                                               {"strides", {"dense"}}}));
  if (tier == Tier::smoke) return smoke;
  const std::vector<Axis> more = {{"data", {"exact", "zero_mean", "same_sign", "cancelling"}},
                                  {"weights", {"given", "none"}},
                                  {"dtype", {"bf16", "fp32"}},
                                  {"strides", {"dense", "gaps"}}};
  const auto standard =
      without(pairwise(permutation_axes(
                  {"deepseek-v3", "qwen3-next-80b-a3b", "grok-1"}, {"0", "1", "65", "129"},
                  {"zipf", "one_hot", "balanced", "all_empty", "empty_middle"}, more)),
              smoke);
  if (tier == Tier::standard) return standard;
  return without(pairwise(permutation_axes(top_k_models(), {"511"}, load_names(), more)), standard);
}

}  // namespace

void add_permutation_rows(Registry& registry) {
  const Parameter strides{"strides", {"dense", "gaps"}, 0, 0, "gaps between rows"};
  registry.add(
      {"permutation.copy",
       "Proves that rows, weights and scales arrive byte for byte and that padding is zero.",
       {"PERMUTATION-3b", "PERMUTATION-4a", "PERMUTATION-4b", "PERMUTATION-4c", "PERMUTATION-8"},
       permutation_parameters(
           {{"dtype", {"fp32", "bf16", "fp16", "e4m3", "u8"}, 0, 0, "of the rows"},
            {"travel", {"all", "rows_only"}, 0, 0, "weights and scales too"},
            strides}),
       select_copies,
       run_copy});
  registry.add(
      {"permutation.unpermute",
       "Proves the (weighted) sum of a token's rows, with NaN in every row that is not real.",
       {"PERMUTATION-3c", "PERMUTATION-6a", "PERMUTATION-6b"},
       permutation_parameters(
           {{"data", {"exact", "zero_mean", "same_sign", "cancelling"}, 0, 0, "data regime"},
            {"weights", {"given", "none"}, 0, 0, "weighted or plain sum"},
            {"dtype", {"bf16", "fp32"}, 0, 0, "of rows and outputs"},
            strides}),
       select_unpermutes,
       run_unpermute});
}

}  // namespace dropless::conformance
