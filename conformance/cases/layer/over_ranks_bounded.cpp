// SPDX-License-Identifier: Apache-2.0
// Layers of published models over ranks, within the bounds of a layer and of the declared roundings
// of the combine: LAYER-4a to 4e; and, bit by bit, what repeats, recompute and saved state leave
// as it was: LAYER-3 and EXCHANGE-15 over ranks.
#include "conformance/cases/data.h"
#include "conformance/cases/exchange/setup.h"
#include "conformance/cases/layer/over_ranks.h"
#include "conformance/cases/routing/setup.h"
#include "conformance/judge/trust.h"

namespace dropless::conformance {
namespace {

void fill(LayerGroup& step) {
  const CaseRun& run = step.run;
  LayerData& data = step.whole;
  fill_layer(run, data, step.total_tokens());
  if (run.word("routing") == "given") {
    reference::ExchangeSettings settings;
    settings.ranks = step.ranks;
    settings.num_experts = data.experts(), settings.top_k = data.route.top_k;
    data.given_ids.clear();
    data.ids_are_given = true;
    for (Index from = 0; from < step.ranks; ++from) {
      Random draw = run.random("ids " + std::to_string(from));
      const auto ids =
          exchange_ids(run.word("load"), settings, from, step.tokens[at(from)], draw, 0.05);
      data.given_ids.insert(data.given_ids.end(), ids.begin(), ids.end());
    }
  }
  Random random = run.random("d_y");
  step.whole_d_y = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, random);
  step.take_parts();
}

// ---- layer.over_ranks_bounded

void run_bounded(CaseRun& run) {
  LayerGroup step(run, "only");
  fill(step);
  LayerExchange exchange(step);
  step.part.exchange = exchange.handle();
  LayerCall call(run, step.part);
  call.forward(true);
  call.backward(step.d_y(), true);
  exchange.close();
  // Where roundings of partial sums are declared, they are what y and d_x are judged by.
  const bool once = run.profile().combine_rounding == DROPLESS_COMBINE_ROUNDS_ONCE;
  const bool codes = step.whole.settings.recipe == DROPLESS_RECIPE_MXFP8;
  const char* const sums = codes ? "LAYER-4e" : once ? "LAYER-4a" : "LAYER-4d";
  judge_over_ranks(step, call, {sums, sums, codes ? "LAYER-4e" : "LAYER-4b", "LAYER-4c"});
  const bool busy = step.total_tokens() >= 16 * step.ranks && run.word("mask") == "none";
  if (run.word("routing") == "router" && run.word("share") == "even" && busy) {
    require_traffic(step, step.gathered_ids(call.ids->integers()));
  }
}

// ---- layer.over_ranks_state

using Bits = std::vector<std::pair<std::string, Bytes>>;

Bits bits_of(const LayerCall& call) {
  Bits bits = {{"y", call.y->bytes()},
               {"ids", call.ids->bytes()},
               {"tokens_per_expert", call.counts->bytes()},
               {"d_x", call.d_x->bytes()}};
  for (const auto& gradient : call.gradients) {
    bits.emplace_back(gradient.name, gradient.buffer->bytes());
  }
  return bits;
}

void run_state(CaseRun& run) {
  LayerGroup step(run, "only");
  fill(step);
  LayerExchange exchange(step);
  step.part.exchange = exchange.handle();
  LayerCall call(run, step.part);
  call.forward(true);
  call.backward(step.d_y(), true);
  const Bits first = bits_of(call);
  judge_over_ranks(step, call, {"LAYER-4a", "LAYER-4a", "LAYER-4b", "LAYER-4c"});
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) {
    exchange.close();
    return;  // bits mean nothing then
  }
  Random delays = run.random("delays " + std::to_string(step.rank));
  const auto again = [&](const char* clause, const std::string& what, bool keep, bool use_saved) {
    run.buffers().poison_outputs();
    wait_for(delays.chance(0.25) ? delays.between(1, 2) : 0);
    call.forward(keep);
    wait_for(delays.chance(0.25) ? delays.between(1, 2) : 0);
    call.backward(step.d_y(), use_saved);
    const Bits bits = bits_of(call);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      run.judge().holds(clause, bits[i].first + " " + what, bits[i].second == first[i].second,
                        "the same bits", "others");
    }
  };
  again("LAYER-3b", "without saved state", false, false);
  call.settings.recompute = 1;
  again("LAYER-3a", "with recompute", true, true);
  call.settings.recompute = 0, call.settings.offload = 1;
  again("LAYER-3a", "with offload", true, true);
  call.settings.offload = 0, call.settings.overlap = 1;
  again("LAYER-3a", "with overlap", true, true);
  call.settings.overlap = 0;
  call.forward(true);
  call.release();  // this state is not used
  again("LAYER-3b", "after a release", true, true);
  const Index repeats = run.integer("repeats");
  for (Index repeat = 0; repeat < repeats; ++repeat) {
    again("EXCHANGE-15", "of repeat " + std::to_string(repeat), true, true);
  }
  exchange.close();
}

// ---- registration

std::vector<Parameter> parameters() {
  std::vector<Parameter> all = rank_parameters();
  for (Parameter& more : std::vector<Parameter>{
           word_parameter("model", top_k_model_names(), "published model"),
           integer_parameter("divisor", 1, 1024, "widths are divided by this"),
           word_parameter("dtype", {"bf16", "fp32"}, "of the input and the expert weights"),
           word_parameter("placement", {"late", "early", "input"}, "of the routing weight"),
           word_parameter("recipe", {"plain", "mxfp8", "mxfp8_e5m2"}, "of the expert products"),
           word_parameter("routing", {"router", "given"}, "ids from the router, or handed in"),
           word_parameter("load", exchange_load_names(), "of given ids"),
           word_parameter("mask", {"none", "some", "all"}, "masked tokens")}) {
    all.push_back(std::move(more));
  }
  return all;
}

Parameter seed() {
  return integer_parameter("seed", 0, std::int64_t{1} << 62, "of the random numbers");
}

std::string objection(const Values& values) {
  if (value_of(values, "routing") == "router" && value_of(values, "load") != "balanced") {
    return "a load goes with given ids";
  }
  const Model* model = find_model(value_of(values, "model"));
  return model == nullptr ? "" : rank_objection(values, model->experts);
}

struct ModelAxes {
  std::vector<std::string> ranks = {"4"}, tokens = {"17"}, share = {"even"}, nodes = {"one"};
  std::vector<std::string> model = {"mixtral-8x7b"}, divisor = {"64"}, dtype = {"bf16"};
  std::vector<std::string> placement = {"late"}, recipe = {"plain"}, routing = {"router"};
  std::vector<std::string> load = {"balanced"}, mask = {"none"};
};

std::vector<Values> cases(ModelAxes axes, const std::vector<Axis>& more = {}) {
  std::vector<Axis> all = {
      {"ranks", std::move(axes.ranks)},   {"tokens", std::move(axes.tokens)},
      {"share", std::move(axes.share)},   {"nodes", std::move(axes.nodes)},
      {"model", std::move(axes.model)},   {"divisor", std::move(axes.divisor)},
      {"dtype", std::move(axes.dtype)},   {"placement", std::move(axes.placement)},
      {"recipe", std::move(axes.recipe)}, {"routing", std::move(axes.routing)},
      {"load", std::move(axes.load)},     {"mask", std::move(axes.mask)}};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"seed", {"1"}});
  return pairwise(all, [](const Values& values) { return objection(values).empty(); });
}

void append(std::vector<Values>& to, std::vector<Values> from) {
  for (Values& values : from) to.push_back(std::move(values));
}

std::vector<Values> standard_bounded() {
  // Biases and a clamped activation, a shared gate, groups and an expert bias, one expert per
  // token, a scale per expert.
  std::vector<Values> all = cases({.ranks = {"4"}, .model = {"gpt-oss-20b"}});
  append(all, cases({.ranks = {"2"}, .model = {"qwen1-5-moe-a2-7b"}}));
  append(all,
         cases({.ranks = {"8"}, .tokens = {"5"}, .model = {"deepseek-v3"}, .divisor = {"256"}}));
  append(all, cases({.model = {"gemma-4-26b-a4b"}, .dtype = {"fp32"}}));
  append(all, cases({.model = {"llama-4-scout"}, .placement = {"input"}, .recipe = {"mxfp8"}}));
  append(all, cases({.ranks = {"2", "4", "1"},
                     .tokens = {"17", "3"},
                     .share = {"even", "uneven", "none_on_first", "only_on_last"},
                     .nodes = {"one", "two"},
                     .model = {"mixtral-8x7b", "granite-3-1-1b-a400m", "gpt-oss-20b"},
                     .dtype = {"bf16", "fp32"},
                     .placement = {"late", "early", "input"},
                     .recipe = {"plain", "mxfp8", "mxfp8_e5m2"},
                     .routing = {"router", "given"},
                     .load = {"balanced", "to_first", "spread", "one_rank"},
                     .mask = {"none", "some"}}));
  return all;
}

// Chosen when somebody asks, see select_exact.
std::vector<Values> select_bounded(Tier tier) {
  std::vector<Values> smoke = cases({.ranks = {"4"}});
  append(smoke, cases({.ranks = {"2"}, .share = {"uneven"}, .recipe = {"mxfp8"}}));
  if (tier == Tier::smoke) return smoke;
  return tiers(smoke, standard_bounded(),
               cases({.ranks = {"8"},
                      .tokens = {"65"},
                      .share = {"uneven"},
                      .model = {"olmoe-1b-7b", "deepseek-v3", "gpt-oss-20b"},
                      .recipe = {"plain", "mxfp8"}}))(tier);
}

}  // namespace

void add_layer_over_ranks(Registry& registry) {
  std::vector<Parameter> all = parameters();
  all.push_back(seed());
  const std::vector<std::string> clauses = {"LAYER-1a", "LAYER-1b", "LAYER-1f",
                                            "LAYER-1g", "LAYER-4a", "LAYER-4b",
                                            "LAYER-4c", "LAYER-4d", "LAYER-4e"};
  registry.add({"layer.over_ranks_bounded",
                "Proves outputs and every gradient of a layer over ranks within the error of a "
                "layer and of the declared roundings; ids by the router's own logits.",
                clauses, all, select_bounded, run_bounded, objection});

  std::vector<Parameter> state = parameters();
  state.push_back(integer_parameter("repeats", 0, 100, "repeats with other delays"));
  state.push_back(seed());
  const Axis none{"repeats", {"2"}}, twenty{"repeats", {"20"}};
  std::vector<Values> standard = cases({.ranks = {"4"}, .tokens = {"5"}}, {twenty});
  append(standard, cases({.ranks = {"2"},
                          .tokens = {"7"},
                          .model = {"granite-3-1-1b-a400m"},
                          .recipe = {"mxfp8", "plain"},
                          .mask = {"some", "none"}},
                         {none}));
  registry.add({"layer.over_ranks_state",
                "Proves bit by bit that saved state, recompute, offload, overlap and repeats under "
                "delays change nothing of a layer over ranks.",
                {"LAYER-1a", "LAYER-1b", "LAYER-1f", "LAYER-1g", "LAYER-3a", "LAYER-3b", "LAYER-4a",
                 "LAYER-4b", "LAYER-4c", "EXCHANGE-15"},
                state,
                tiers(cases({.ranks = {"2"}, .tokens = {"5"}}, {none}), standard),
                run_state,
                objection});
}

}  // namespace dropless::conformance
