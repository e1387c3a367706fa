// SPDX-License-Identifier: Apache-2.0
// What a layer owes beside its values: one expert per token, gradients of further losses, weights
// that change in place, refusals. LAYER-1a, 1c, 1e, GENERAL-3.
#include <algorithm>

#include "conformance/cases/data.h"
#include "conformance/cases/layer/setup.h"
#include "conformance/cases/routing/setup.h"
#include "tolerances/bounds.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// ---- layer.single_expert

// The fast path of top-1 layers, with a factor that it must not forget.
void run_single_expert(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  run.judge().require(data.route.top_k == 1, "the model selects one expert");
  data.route.scaling_factor = 1.5;
  Random random = run.random("d_y");
  const auto d_y = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, random);
  LayerCall call(run, data);
  call.forward(true);
  const Replay replay = judge_routing(run, data, call);
  const bool late = run.word("placement") == "late";
  judge_output(run, data, call, replay, late ? "LAYER-1a" : "LAYER-1c");
  call.backward(d_y, true);
  judge_gradients(run, data, call, replay, d_y, "LAYER-1e");
}

// ---- layer.further_losses

// d_y = 0, so that all that is left are the gradients of the other losses: they reach the router
// and the input, and nothing else.
void run_further_losses(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  const Index tokens = data.tokens, experts = data.experts(), hidden = data.hidden;
  Random random = run.random("d_logits");
  LayerCall call(run, data);
  for (Index i = 0; i < tokens * experts; ++i) {
    call.d_logits.push_back(static_cast<double>(random.between(-64, 64)) / 64);
  }
  const std::vector<double> d_y(at(tokens * hidden), 0.0);
  call.forward(true);
  call.backward(d_y, true);

  std::vector<double> d_router(at(experts * hidden), 0.0), d_x(at(tokens * hidden), 0.0);
  std::vector<double> d_router_gauge = d_router, d_x_gauge = d_x, d_bias(at(experts), 0.0);
  for (Index t = 0; t < tokens; ++t) {
    for (Index e = 0; e < experts; ++e) {
      const double d = call.d_logits[at(t * experts + e)];
      d_bias[at(e)] += d;
      for (Index h = 0; h < hidden; ++h) {
        const double x = data.x[at(t * hidden + h)];
        const double w = data.router_weight[at(e * hidden + h)];
        d_router[at(e * hidden + h)] += d * x;
        d_router_gauge[at(e * hidden + h)] += std::abs(d * x);
        d_x[at(t * hidden + h)] += d * w;
        d_x_gauge[at(t * hidden + h)] += std::abs(d * w);
      }
    }
  }
  const auto errors = [&](const std::vector<double>& gauges, Index terms) {
    std::vector<double> bounds;
    for (const double gauge : gauges) {
      bounds.push_back(
          tolerances::gemm(run.profile(), tolerances::Operands::fp32, terms, gauge, 1));
    }
    return bounds;
  };
  Judge& judge = run.judge();
  judge.bounded("LAYER-1e", "d_x of further losses", *call.d_x, d_x, errors(d_x_gauge, experts));
  for (const LayerCall::Gradient& gradient : call.gradients) {
    const std::string_view name = gradient.name;
    if (name == "d_router_weight") {
      judge.bounded("LAYER-1e", name, *gradient.buffer, d_router, errors(d_router_gauge, tokens));
    } else if (name == "d_router_bias") {
      judge.exact("LAYER-1e", name, *gradient.buffer, d_bias);  // sums of multiples of 2^-6
    } else {
      judge.exact("LAYER-1e", std::string(name) + " without a cotangent", *gradient.buffer,
                  std::vector<double>(at(gradient.buffer->size()), 0.0));
    }
  }
}

// ---- layer.changed_weights

// An optimizer writes weights in place: what was cached of them is worth nothing after that.
void run_changed_weights(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  LayerCall call(run, data);
  call.forward(false);
  judge_output(run, data, call, judge_routing(run, data, call), "LAYER-1a");
  const std::vector<std::pair<const char*, std::vector<double>*>> weights = {
      {"down", &data.down}, {"gate_up", &data.gate_up}};
  for (const auto& [name, values] : weights) {
    std::reverse(values->begin(), values->end());
    Buffer& memory = call.memory_of(name);
    const std::vector<std::uint8_t> bytes = memory.bytes();
    const std::size_t size = dtype_bytes(memory.dtype()), count = bytes.size() / size;
    std::vector<std::uint8_t> reversed(bytes.size());
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(i * size), size,
                  reversed.begin() + static_cast<std::ptrdiff_t>((count - 1 - i) * size));
    }
    memory.overwrite(reversed);
    run.buffers().poison_outputs();
    call.forward(false);
    judge_output(run, data, call, judge_routing(run, data, call), "LAYER-1a");
  }
}

// ---- layer.refusals

struct Refusal {
  const char* word;
  const char* why;
  void (*change)(dropless_layer_args&, dropless_layer_parameters&, dropless_tensor&,
                 dropless_layer_settings&, dropless_route_settings&);
};

using Forward = dropless_layer_args;
using Parameters = dropless_layer_parameters;
using Layer = dropless_layer_settings;
using Route = dropless_route_settings;

constexpr Refusal refusals[] = {
    {"no_settings", "settings are null",
     [](Forward& a, Parameters&, dropless_tensor&, Layer&, Route&) { a.settings = nullptr; }},
    {"no_router", "the router's weight is missing",
     [](Forward&, Parameters& p, dropless_tensor&, Layer&, Route&) { p.router_weight = nullptr; }},
    {"no_experts", "the second matrix of the experts is missing",
     [](Forward&, Parameters& p, dropless_tensor&, Layer&, Route&) { p.down = nullptr; }},
    {"narrow_down", "down is narrower than the activation",
     [](Forward&, Parameters& p, dropless_tensor& t, Layer&, Route&) {
       t = *p.down;
       t.shape[2] -= 1;
       p.down = &t;
     }},
    {"few_experts", "fewer experts than the router knows",
     [](Forward&, Parameters& p, dropless_tensor& t, Layer&, Route&) {
       t = *p.gate_up;
       t.shape[0] -= 1;
       p.gate_up = &t;
     }},
    {"short_output", "y has fewer rows than x",
     [](Forward& a, Parameters&, dropless_tensor& t, Layer&, Route&) {
       t = *a.y;
       t.shape[0] -= 1;
       a.y = &t;
     }},
    {"other_dtype", "y has another dtype than x",
     [](Forward& a, Parameters&, dropless_tensor& t, Layer&, Route&) {
       t = *a.y;
       t.dtype = DROPLESS_I64;
       a.y = &t;
     }},
    {"k_above_experts", "K above E",
     [](Forward& a, Parameters&, dropless_tensor& t, Layer& s, Route& r) {
       r.top_k = r.num_experts + 1;
       s.route = &r;
       a.settings = &s;
       t = *a.ids;
       t.shape[1] = r.top_k;
       t.strides[0] = 0;
       a.ids = &t;
     }},
};

void run_refusals(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  LayerCall call(run, data);
  call.forward(false);  // the control
  judge_output(run, data, call, judge_routing(run, data, call), "LAYER-1a");
  for (const Refusal& refusal : refusals) {
    if (run.word("what") != refusal.word) continue;
    dropless_tensor tensor{};
    Layer settings = call.settings;
    Route route = data.route;
    call.refused_forward(refusal.why, "GENERAL-3", [&](Forward& a, Parameters& p) {
      refusal.change(a, p, tensor, settings, route);
    });
  }
}

// The parameters that fill_layer reads; `more` stands before the seed.
Family family(std::string name, std::string purpose, std::vector<std::string> clauses,
              std::vector<Parameter> more, void (*run)(CaseRun&)) {
  std::vector<Parameter> parameters = {
      {"model", top_k_model_names(), 0, 0, "published model"},
      {"divisor", {}, 1, 1024, "widths are divided by this"},
      {"tokens", {}, 2, 1 << 16, "tokens T"},
      {"dtype", {"bf16", "fp32"}, 0, 0, "of the input and the expert weights"},
      {"placement", {"late"}, 0, 0, "of the routing weight"},
      {"recipe", {"plain"}, 0, 0, "of the expert products"},
      {"routing", {"router"}, 0, 0, "ids from the router"},
      {"mask", {"none"}, 0, 0, "masked tokens"}};
  parameters.insert(parameters.end(), more.begin(), more.end());
  parameters.push_back({"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"});
  Family result;
  result.name = std::move(name), result.purpose = std::move(purpose);
  result.clauses = std::move(clauses), result.parameters = std::move(parameters);
  result.run = run;
  return result;
}

std::vector<Values> cases(const std::vector<std::string>& models,
                          const std::vector<std::string>& dtypes, const std::vector<Axis>& more) {
  std::vector<Axis> axes = {{"model", models},       {"divisor", {"64"}},     {"tokens", {"33"}},
                            {"dtype", dtypes},       {"placement", {"late"}}, {"recipe", {"plain"}},
                            {"routing", {"router"}}, {"mask", {"none"}}};
  axes.insert(axes.end(), more.begin(), more.end());
  axes.push_back({"seed", {"1"}});
  return product(axes);
}

}  // namespace

void add_layer_contract(Registry& registry) {
  Family single = family("layer.single_expert",
                         "Proves a layer with one expert per token and a scaling factor.",
                         {"LAYER-1a", "LAYER-1b", "LAYER-1c", "LAYER-1e", "LAYER-1f", "LAYER-1g"},
                         {}, run_single_expert);
  single.parameters[0].words = {"llama-4-scout"};
  single.parameters[4].words = {"late", "input"};
  const auto placed = [](const char* dtype) {
    std::vector<Values> all = cases({"llama-4-scout"}, {dtype}, {});
    all.push_back(all.front());
    all.back()[4].second = "input";
    return all;
  };
  single.select = tiers(placed("bf16"), placed("fp32"));
  registry.add(std::move(single));

  Family further = family("layer.further_losses",
                          "Proves that the gradient of further losses on the logits is added to "
                          "those of the router and of the input, and to nothing else.",
                          {"LAYER-1e"}, {}, run_further_losses);
  further.select = tiers(cases({"mixtral-8x7b"}, {"bf16"}, {}),
                         cases({"gpt-oss-20b", "olmoe-1b-7b"}, {"bf16", "fp32"}, {}));
  registry.add(std::move(further));

  Family changed = family("layer.changed_weights",
                          "Proves that nothing of the weights is kept from one call to the next.",
                          {"LAYER-1a", "LAYER-1b", "LAYER-1g"}, {}, run_changed_weights);
  changed.select = tiers(cases({"mixtral-8x7b"}, {"bf16"}, {}), {});
  registry.add(std::move(changed));

  std::vector<std::string> words;
  for (const Refusal& refusal : refusals) words.emplace_back(refusal.word);
  Family refused = family("layer.refusals",
                          "Proves that parameters and outputs that do not fit are refused, with "
                          "every output untouched.",
                          {"GENERAL-3", "LAYER-1a", "LAYER-1b", "LAYER-1g"},
                          {word_parameter("what", words, "what does not fit")}, run_refusals);
  refused.select = tiers(cases({"mixtral-8x7b"}, {"bf16"}, {{"what", {words[0], words[3]}}}),
                         cases({"mixtral-8x7b"}, {"bf16"}, {{"what", words}}));
  registry.add(std::move(refused));
}

}  // namespace dropless::conformance
