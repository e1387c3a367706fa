// SPDX-License-Identifier: Apache-2.0
// Saved state, recompute, host offload and repetition: LAYER-3a, 3b, GENERAL-5. Everything bitwise.
#include "conformance/cases/data.h"
#include "conformance/cases/layer/setup.h"
#include "conformance/cases/routing/setup.h"

namespace dropless::conformance {
namespace {

struct Bits {
  std::vector<std::uint8_t> y, ids, counts, d_x;
  std::vector<std::vector<std::uint8_t>> gradients;
};

Bits bits_of(const LayerCall& call) {
  Bits bits{call.y->bytes(), call.ids->bytes(), call.counts->bytes(), call.d_x->bytes(), {}};
  for (const auto& gradient : call.gradients) bits.gradients.push_back(gradient.buffer->bytes());
  return bits;
}

void judge_same(CaseRun& run, const char* clause, const std::string& what, const LayerCall& call,
                const Bits& bits) {
  Judge& judge = run.judge();
  judge.same_bytes(clause, "y " + what, *call.y, bits.y);
  judge.same_bytes(clause, "ids " + what, *call.ids, bits.ids);
  judge.same_bytes(clause, "tokens_per_expert " + what, *call.counts, bits.counts);
  judge.same_bytes(clause, "d_x " + what, *call.d_x, bits.d_x);
  for (std::size_t i = 0; i < call.gradients.size(); ++i) {
    judge.same_bytes(clause, call.gradients[i].name + (" " + what), *call.gradients[i].buffer,
                     bits.gradients[i]);
  }
}

void run_state(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  Random random = run.random("d_y");
  const auto d_y = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, random);
  LayerCall call(run, data);
  call.forward(true);
  call.backward(d_y, true);
  const Bits bits = bits_of(call);
  const Replay replay = judge_routing(run, data, call);
  judge_gradients(run, data, call, replay, d_y, "LAYER-1e");

  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return;  // bits mean nothing then
  const auto again = [&](const char* clause, const std::string& what, bool keep, bool use_saved) {
    run.buffers().poison_outputs();
    call.forward(keep);
    call.backward(d_y, use_saved);
    judge_same(run, clause, what, call, bits);
  };
  again("GENERAL-5", "again", true, true);
  again("LAYER-3b", "without saved state", false, false);
  call.settings.recompute = 1;
  again("LAYER-3a", "with recompute", true, true);
  call.settings.recompute = 0, call.settings.offload = 1;
  again("LAYER-3a", "with offload", true, true);
  call.settings.offload = 0;
  // State that is released unused; the layer goes on as before.
  call.forward(true);
  call.release();
  again("LAYER-3b", "after a release", true, true);
}

}  // namespace

void add_layer_state(Registry& registry) {
  registry.add(
      {"layer.state",
       "Proves bit by bit that saved state, recompute, offload and repetition change nothing, also "
       "with masked tokens.",
       {"LAYER-1a", "LAYER-1e", "LAYER-1f", "LAYER-3a", "LAYER-3b", "GENERAL-5"},
       {{"model", top_k_model_names(), 0, 0, "published model"},
        {"divisor", {}, 1, 1024, "widths are divided by this"},
        {"tokens", {}, 0, 1 << 16, "tokens T"},
        {"dtype", {"bf16", "fp32"}, 0, 0, "of the input and the expert weights"},
        {"placement", {"late", "early", "input"}, 0, 0, "of the routing weight"},
        {"recipe", {"plain", "mxfp8", "mxfp8_e5m2"}, 0, 0, "of the expert products"},
        {"routing", {"router", "given"}, 0, 0, "ids from the router, or handed in"},
        {"mask", {"none", "some", "all"}, 0, 0, "masked tokens"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
       [](Tier tier) {
         const auto cases = [](std::vector<std::string> models, std::vector<std::string> recipes,
                               const char* mask = "none") {
           return product({{"model", std::move(models)},
                           {"divisor", {"64"}},
                           {"tokens", {"33"}},
                           {"dtype", {"bf16"}},
                           {"placement", {"late"}},
                           {"recipe", std::move(recipes)},
                           {"routing", {"router"}},
                           {"mask", {mask}},
                           {"seed", {"1"}}});
         };
         if (tier == Tier::smoke) return cases({"mixtral-8x7b"}, {"plain"});
         if (tier == Tier::full) return std::vector<Values>{};
         auto standard = cases({"granite-3-1-1b-a400m", "deepseek-moe-16b"}, {"plain", "mxfp8"});
         // Masks have to reach a backward pass that makes the forward pass again.
         for (Values& values : cases({"mixtral-8x7b"}, {"plain"}, "some")) {
           standard.push_back(std::move(values));
         }
         return standard;
       },
       run_state});
}

}  // namespace dropless::conformance
