// SPDX-License-Identifier: Apache-2.0
// Routing cases about which experts are selected: published models, precision, bias. Groups and
// ties have files of their own.
#include "conformance/cases/routing/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

// ---- routing.model

double share_without_bias(const CaseRun& run, const RoutingData& data) {
  RoutingData other = data;
  other.bias.clear();
  return share_of_other_selections(run, data, other);
}

double share_without_groups(const CaseRun& run, const RoutingData& data) {
  RoutingData other = data;
  other.settings.num_groups = other.settings.kept_groups = 1;
  return share_of_other_selections(run, data, other);
}

void run_model(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  bool biased = false, grouped = false;
  // Of a few tokens most may be selected as if there were no bias: then others are drawn.
  for (int attempt = 0; attempt < 40 && !(biased && grouped); ++attempt) {
    data = model_data(run.model(), run.integer("tokens"), logits_dtype(run.word("dtype")), random);
    draw_clear_rows(run, data, normal_row(data, random, 2));
    biased = data.bias.empty() || share_without_bias(run, data) > 0.5;
    grouped = data.settings.num_groups <= 1 || share_without_groups(run, data) > 0.5;
  }
  run.judge().require(biased, "the bias changes the selection of most tokens");
  run.judge().require(grouped, "the group limit changes the selection of most tokens");
  const dropless_dtype ids_dtype = run.word("ids") == "i64" ? DROPLESS_I64 : DROPLESS_I32;
  RouteCall call(run, data, {.ids_dtype = ids_dtype});
  call.perform();
  judge_route(run, data, call);
}

struct ModelStyle {
  const char *dtype, *tokens, *ids;
};

std::vector<Values> model_cases(const std::vector<std::string>& names,
                                const std::vector<ModelStyle>& styles) {
  std::vector<Values> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& [dtype, tokens, ids] = styles[i % styles.size()];
    out.push_back(
        {{"model", names[i]}, {"dtype", dtype}, {"tokens", tokens}, {"ids", ids}, {"seed", "1"}});
  }
  return out;
}

Family model_family() {
  Family family;
  family.name = "routing.model";
  family.purpose =
      "Routing with the settings of a published model gives its experts, weights, scores and "
      "counts; ties, NaN and masks are left to other families";
  family.clauses = {"ROUTING-1e", "ROUTING-2b", "ROUTING-3a", "ROUTING-5a",
                    "ROUTING-5d", "ROUTING-6a", "ROUTING-6b", "ROUTING-6c",
                    "ROUTING-6d", "ROUTING-6g", "ROUTING-10"};
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits"),
                       integer_parameter("tokens", 1, 65536, "tokens"),
                       word_parameter("ids", {"i32", "i64"}, "format of the ids"),
                       integer_parameter("seed", 0, 1 << 30, "another draw of the data")};
  const std::vector<std::string> few = {"deepseek-v3", "mixtral-8x7b",  "qwen3-30b-a3b",
                                        "gpt-oss-20b", "llama-4-scout", "deepseek-v4-flash"};
  const std::vector<std::string> all = top_k_model_names();
  family.select = tiers(model_cases(few, {{"fp32", "33", "i32"}, {"bf16", "65", "i64"}}),
                        model_cases(all, {{"bf16", "63", "i32"},
                                          {"fp32", "33", "i32"},
                                          {"bf16", "1", "i64"},
                                          {"fp32", "129", "i64"}}),
                        product({{"model", all},
                                 {"dtype", {"fp32", "bf16"}},
                                 {"tokens", {"1", "31", "257", "1024"}},
                                 {"ids", {"i32"}},
                                 {"seed", {"1", "2"}}}));
  family.run = run_model;
  return family;
}

// ---- routing.precision

void run_precision(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(64, 8, run.word("score"), false);
  data.tokens = 65;
  draw_clear_rows(run, data, [&](std::span<double> row) {
    const double base = static_cast<double>(random.between(-16, 16)) / 16;
    const std::vector<Index> rank = random.permutation(static_cast<Index>(row.size()));
    for (std::size_t e = 0; e < row.size(); ++e) {
      row[e] = base + static_cast<double>(rank[e]) * 0x1p-14;
    }
  });
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call, {.set = "ROUTING-2c", .order = "ROUTING-2c"});
}

Family precision_family() {
  Family family;
  family.name = "routing.precision";
  family.purpose =
      "Logits 2^-14 apart are told apart: neither logits nor scores pass through bf16, fp16 or "
      "TF32 before they are compared";
  family.clauses = {"ROUTING-1e", "ROUTING-2c", "ROUTING-5a", "ROUTING-6a",
                    "ROUTING-6b", "ROUTING-6c", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function")};
  const std::vector<Values> all = product({{"score", score_words()}});
  family.select = tiers({all[2]}, all);
  family.run = run_precision;
  return family;
}

// ---- routing.bias

void run_bias(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(32, 4, run.word("score"), run.word("renormalize") == "yes");
  data.settings.scaling_factor = 2.5;
  data.tokens = 65;
  const bool dominating = run.word("size") == "dominating";
  for (Index e = 0; e < data.experts(); ++e) {
    const double size = dominating ? 8 : is_softmax(data.settings) ? 0.2 : 0.4;
    data.bias.push_back(tolerances::round_to(DROPLESS_FP32, size * random.normal()));
  }
  draw_clear_rows(run, data, normal_row(data, random, 1.5));
  RoutingData other = data;
  other.bias.clear();
  run.judge().require(share_of_other_selections(run, data, other) > 0.5,
                      "the bias changes the selection of most tokens");
  other = data;
  for (double& b : other.bias) b = -b;
  run.judge().require(share_of_other_selections(run, data, other) > 0.5,
                      "the sign of the bias matters to most tokens");
  RouteCall call(run, data);
  call.perform();
  // Half of the cases judge the weights as ROUTING-2a, the other half by the bound of ROUTING-2b.
  const bool renormalized = data.settings.renormalize != 0;
  judge_route(run, data, call,
              {.set = "ROUTING-2a", .weights = renormalized ? "ROUTING-2a" : "ROUTING-2b"});
}

Family bias_family() {
  Family family;
  family.name = "routing.bias";
  family.purpose =
      "The expert bias decides the selection with its sign and enters neither weights nor scores, "
      "also where it is much larger than the scores";
  family.clauses = {"ROUTING-1e", "ROUTING-2a", "ROUTING-2b",
                    "ROUTING-5a", "ROUTING-5d", "ROUTING-10"};
  family.parameters = {
      word_parameter("score", {"sigmoid", "sqrt_softplus", "softmax"}, "score function"),
      word_parameter("size", {"dominating", "moderate"}, "bias against scores"),
      word_parameter("renormalize", {"yes", "no"}, "renormalisation")};
  const std::vector<Axis> axes = {{"score", {"sigmoid", "sqrt_softplus", "softmax"}},
                                  {"size", {"dominating", "moderate"}},
                                  {"renormalize", {"yes", "no"}}};
  const std::vector<Values> some = pairwise(axes);
  family.select = tiers({some[0]}, some, product(axes));
  family.run = run_bias;
  return family;
}

}  // namespace

void add_routing_selection(Registry& registry) {
  registry.add(model_family());
  registry.add(precision_family());
  registry.add(bias_family());
}

}  // namespace dropless::conformance
