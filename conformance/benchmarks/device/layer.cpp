// SPDX-License-Identifier: Apache-2.0
// The whole layer on one rank: a slice of DeepSeek-V3 with 32 local experts.
#include <fmt/format.h>

#include <cmath>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/cases/case_run.h"

namespace dropless::conformance {
namespace {

enum class Pass { forward, both };

// Everything that the arguments point to.
struct Layer {
  Layer(DeviceBench& made_by, const DeviceSizes& sizes, int recipe) : bench(made_by) {
    const Index t = sizes.tokens, k = sizes.top_k, h = sizes.hidden, i = sizes.intermediate;
    const Index e = sizes.local_experts;
    const double by_hidden = 1 / std::sqrt(static_cast<double>(h));
    const double by_intermediate = 1 / std::sqrt(static_cast<double>(i));
    router = bench.normal(DROPLESS_BF16, {e, h}, by_hidden);
    gate_up = bench.normal(DROPLESS_BF16, {e, 2 * i, h}, by_hidden);
    down = bench.normal(DROPLESS_BF16, {e, h, i}, by_intermediate);
    x = bench.normal(DROPLESS_BF16, {t, h});
    d_y = bench.normal(DROPLESS_BF16, {t, h});
    y = bench.tensor(DROPLESS_BF16, {t, h});
    d_x = bench.tensor(DROPLESS_BF16, {t, h});
    ids = bench.tensor(DROPLESS_I64, {t, k});
    counts = bench.tensor(DROPLESS_I64, {e});
    d_router = bench.tensor(DROPLESS_BF16, {e, h});
    d_gate_up = bench.tensor(DROPLESS_BF16, {e, 2 * i, h});
    d_down = bench.tensor(DROPLESS_BF16, {e, h, i});

    route.num_experts = e, route.top_k = k;
    route.score_function = DROPLESS_SCORE_SIGMOID;
    route.renormalize = 1, route.renormalize_eps = 1e-20, route.scaling_factor = 2.5;
    settings.route = &route, settings.activation = &activation;
    settings.recipe = recipe, settings.gradient_format = DROPLESS_E4M3;
    parameters.router_weight = router->get();
    parameters.gate_up = gate_up->get(), parameters.down = down->get();
    gradients.router_weight = d_router->get();
    gradients.gate_up = d_gate_up->get(), gradients.down = d_down->get();
    args.settings = &settings, args.parameters = &parameters;
    args.x = x->get(), args.y = y->get(), args.ids = ids->get();
    args.tokens_per_expert = counts->get();
    backward.forward = &args, backward.gradients = &gradients;
    backward.d_y = d_y->get(), backward.d_x = d_x->get();
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  void run(Pass pass) {
    args.keep = pass == Pass::both ? 1 : 0;
    bench.call("layer_forward", bench.table().layer_forward, args);
    if (pass == Pass::forward) return;
    try {
      bench.call("layer_backward", bench.table().layer_backward, backward);
    } catch (const OperationFailed&) {
      if (bench.table().layer_release != nullptr) {
        bench.call("layer_release", bench.table().layer_release, args);
      }
      throw;
    }
  }

  DeviceBench& bench;
  DeviceTensor router, gate_up, down, x, d_y, y, d_x, ids, counts, d_router, d_gate_up, d_down;
  dropless_route_settings route = make_args<dropless_route_settings>();
  dropless_activation_settings activation = make_args<dropless_activation_settings>();
  dropless_layer_settings settings = make_args<dropless_layer_settings>();
  dropless_layer_parameters parameters = make_args<dropless_layer_parameters>();
  dropless_layer_parameters gradients = make_args<dropless_layer_parameters>();
  dropless_layer_args args = make_args<dropless_layer_args>();
  dropless_layer_backward_args backward = make_args<dropless_layer_backward_args>();
};

OperandSet layer_set(DeviceBench& bench, const DeviceSizes& sizes, int recipe, Pass pass) {
  const auto layer = std::make_shared<Layer>(bench, sizes, recipe);
  OperandSet set;
  set.call = [layer, pass] { layer->run(pass); };
  const auto add = [&set](const char* name, const DeviceTensor& tensor) {
    set.outputs.push_back({name, tensor, tensor->size()});
  };
  add("y", layer->y), add("ids", layer->ids), add("tokens_per_expert", layer->counts);
  if (pass == Pass::forward) return set;
  add("d_x", layer->d_x), add("d_router_weight", layer->d_router);
  add("d_gate_up", layer->d_gate_up), add("d_down", layer->d_down);
  return set;
}

}  // namespace

void add_layer(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
               const DeviceSizes& sizes) {
  const Index t = sizes.tokens, k = sizes.top_k, h = sizes.hidden, i = sizes.intermediate;
  const Index e = sizes.local_experts;
  const auto add = [&](int recipe, Pass pass, Mark mark) {
    const bool plain = recipe == DROPLESS_RECIPE_PLAIN, both = pass == Pass::both;
    DeviceBenchmark layer;
    layer.name = fmt::format("layer.{}.{}.experts{}", both ? "forward_backward" : "forward",
                             plain ? "bf16" : "mxfp8", e);
    layer.what = fmt::format("T={} K={} E={} H={} I={}, sigmoid router", t, k, e, h, i);
    // In bf16 for either recipe: what a trainer would have without it.
    layer.request = fmt::format(
        "layer tokens={} top_k={} experts={} hidden={} intermediate={} "
        "backward={}",
        t, k, e, h, i, both ? 1 : 0);
    const double weights = static_cast<double>(e * 3 * i * h) * 2;
    // x and y, the weights, and for the way back d_y, d_x, the weights again and their gradients.
    layer.bytes = static_cast<double>(t * h * 2) * (both ? 4 : 2) + weights * (both ? 3 : 1);
    // One product forward, two backward, of gate-up and down: twice 3 T K H I.
    layer.flops = 6 * static_cast<double>(t * k * h * i) * (both ? 3 : 1);
    layer.of_codes = !plain;
    layer.mark = mark;
    layer.one_set = true;
    if (table.layer_forward == nullptr) layer.missing.emplace_back("layer_forward");
    if (both && table.layer_backward == nullptr) layer.missing.emplace_back("layer_backward");
    layer.make_set = [sizes, recipe, pass](DeviceBench& bench) {
      return layer_set(bench, sizes, recipe, pass);
    };
    all.push_back(layer);
  };
  add(DROPLESS_RECIPE_PLAIN, Pass::forward, {});
  add(DROPLESS_RECIPE_PLAIN, Pass::both, {MarkKind::of_peer, 1.5});
  add(DROPLESS_RECIPE_MXFP8, Pass::both, {});
}

}  // namespace dropless::conformance
