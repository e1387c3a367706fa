// SPDX-License-Identifier: Apache-2.0
// Cases of AdamW with deterministic rounding: three steps, each judged from the state it was given.
#include <algorithm>
#include <cmath>

#include "conformance/cases/optimizer/setup.h"

namespace dropless::conformance {
namespace {

dropless_dtype dtype_of(std::string_view word) {
  return word.substr(0, 4) == "bf16" ? DROPLESS_BF16 : DROPLESS_FP32;
}

// The state of the next step is what the implementation left behind, so that errors do not add up.
void advance(AdamwData& data, const AdamwCall& call, Random& random) {
  data.first_moment = call.first_moment->values();
  data.second_moment = call.second_moment->values();
  data.weight = (call.master != nullptr ? call.master : call.weight)->values();
  data.gradient = random_gradient(data.size(), data.gradient_dtype, random);
  ++data.settings.step;
}

// The terms of the formula must be visible above the bound.
void require_visible(CaseRun& run, const AdamwData& data) {
  if (data.size() < 100) return;
  const ExpectedAdamw expected = expected_adamw(data);
  const auto share_that_sees = [&](auto change) {
    AdamwData other = data;
    change(other.settings);
    const std::vector<double> weight = expected_adamw(other).weight;
    Index seen = 0;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      seen += std::abs(weight[i] - expected.weight[i]) > 4 * expected.weight_error[i];
    }
    return static_cast<double>(seen) / static_cast<double>(data.size());
  };
  using Settings = reference::AdamwSettings;
  run.judge().require(share_that_sees([](Settings& s) { s.weight_decay = 0; }) > 0.5,
                      "weight decay is visible");
  run.judge().require(share_that_sees([](Settings& s) { ++s.step; }) > 0.5,
                      "bias correction is visible");
  run.judge().require(share_that_sees([](Settings& s) { s.eps = 0; }) > 0.05, "eps is visible");
}

void run_adamw(CaseRun& run) {
  Random random = run.random("data");
  const std::string& weights = run.word("weights");
  AdamwData data = adamw_data(run.integer("elements"), dtype_of(run.word("gradient")),
                              dtype_of(weights), dtype_of(run.word("moment")), random);
  data.has_master = weights == "bf16_master";
  if (data.has_master) {  // a master holds more than the weight
    for (double& p : data.weight) p = static_cast<float>(p * (1 + 0x1p-10 * random.normal()));
  }
  if (run.word("betas") == "decimal") data.settings.beta1 = 0.9, data.settings.beta2 = 0.95;
  const std::string& scale = run.word("scale");
  if (scale != "one") data.settings.gradient_scale = scale == "tensor" ? 0.375 : 0.25;
  data.scale_in_tensor = scale == "tensor";
  data.settings.step = run.integer("first_step");
  if (data.settings.step == 1) require_visible(run, data);
  for (int i = 0; i < 3; ++i) {
    AdamwCall call(run, data, "step " + std::to_string(data.settings.step) + " ");
    call.perform();
    judge_adamw(run, data, call);
    advance(data, call, random);
  }
}

Family adamw_family() {
  Family family;
  family.name = "optimizer.adamw";
  family.purpose =
      "Three AdamW steps, each judged from the state it began with, for every storage of weights "
      "and moments; drift over many steps is left to the training gate";
  family.clauses = {"OPTIMIZER-1a", "OPTIMIZER-1b", "OPTIMIZER-1c", "OPTIMIZER-1d",
                    "OPTIMIZER-1e", "OPTIMIZER-1f", "OPTIMIZER-1j"};
  family.parameters = {
      word_parameter("weights", {"fp32", "bf16_master", "bf16"}, "storage of the weights"),
      word_parameter("moment", {"fp32", "bf16"}, "storage of the first moment"),
      word_parameter("gradient", {"fp32", "bf16"}, "format of the gradient"),
      word_parameter("scale", {"one", "scalar", "tensor"}, "gradient scale"),
      word_parameter("betas", {"dyadic", "decimal"}, "7/8 and 63/64, or 0.9 and 0.95"),
      integer_parameter("elements", 1, 1 << 24, "parameters"),
      integer_parameter("first_step", 1, 1 << 24, "t of the first of three steps")};
  const std::vector<Axis> axes = {{"weights", {"bf16_master", "fp32", "bf16"}},
                                  {"moment", {"bf16", "fp32"}},
                                  {"gradient", {"fp32", "bf16"}},
                                  {"scale", {"one", "tensor", "scalar"}},
                                  {"betas", {"dyadic", "decimal"}},
                                  {"elements", {"1023", "257", "1"}},
                                  {"first_step", {"1", "100"}}};
  const std::vector<Values> some = pairwise(axes);
  family.select = tiers({some[0], some[1]}, some, product(axes));
  family.run = run_adamw;
  return family;
}

}  // namespace

void add_optimizer_adamw(Registry& registry) {
  registry.add(adamw_family());
}

}  // namespace dropless::conformance
