// SPDX-License-Identifier: Apache-2.0
// A layer over ranks on numbers that no rounding changes: EXCHANGE-13 bit by bit, one step, steps
// of different sizes on one handle, two layers in flight, repeats under delays, recompute.
//
// Logits are exactly 0, so that scores are 1/2, weights are powers of two that differ by the
// expert's scale, and every derivative of the router is one as well. relu2 squares integers up to
// 4. Rows of the first matrix hold two elements and rows of the second one, arranged so that each
// column of x meets one unit of an expert and each unit feeds two columns of y. So in the units of
// a token and a block of 32 columns all terms of y and of d_x are integers whose magnitudes add up
// to less than 256: bf16 holds every partial sum, whichever rank makes it, and each element takes
// one rounding at most, the last. Under MXFP8 the units differ by token and block, which makes the
// scales differ and the codes exact. The reference proves it in each case: in double it gives the
// same.
#include <algorithm>
#include <cmath>

#include "conformance/cases/exchange/setup.h"
#include "conformance/cases/layer/over_ranks.h"
#include "conformance/judge/trust.h"

namespace dropless::conformance {
namespace {

using Doubles = std::vector<double>;

constexpr Index hidden = 64, inner = 32, block = 32;

double sign(Random& random) {
  return random.chance(0.5) ? 1 : -1;
}

// [inner, hidden]: two elements in a row, +-1 and +-2, one in a column; unit and column belong to
// the same block.
void append_first_matrix(Doubles& to, Random& random) {
  Doubles matrix(at(inner * hidden), 0.0);
  for (Index b = 0; b < hidden / block; ++b) {
    const std::vector<Index> columns = random.permutation(block);
    for (Index i = 0; i < block; ++i) {
      const Index unit = b * block / 2 + i / 2;
      matrix[at(unit * hidden + b * block + columns[at(i)])] = (1 + i % 2) * sign(random);
    }
  }
  to.insert(to.end(), matrix.begin(), matrix.end());
}

// [hidden, inner]: one element +-1 in a row, two in a column.
void append_second_matrix(Doubles& to, Random& random) {
  Doubles matrix(at(hidden * inner), 0.0);
  for (Index b = 0; b < hidden / block; ++b) {
    const std::vector<Index> rows = random.permutation(block);
    for (Index i = 0; i < block; ++i) {
      matrix[at((b * block + rows[at(i)]) * inner + b * block / 2 + i / 2)] = sign(random);
    }
  }
  to.insert(to.end(), matrix.begin(), matrix.end());
}

Doubles small_integers(Index count, Random& random) {
  Doubles values(at(count));
  for (double& v : values) v = static_cast<double>(random.between(-1, 1));
  return values;
}

// One, two or four experts in use, so that the shares of renormalised weights are powers of two.
void leave_a_power_of_two(std::vector<Index>& ids, Index top_k, Random& random) {
  for (std::size_t first = 0; first < ids.size(); first += at(top_k)) {
    Index used = 0;
    for (std::size_t i = first; i < first + at(top_k); ++i) used += ids[i] >= 0 ? 1 : 0;
    Index wanted = used >= 4 ? 4 : used >= 2 ? 2 : used;
    if (random.chance(0.1)) wanted = std::min<Index>(wanted, random.chance(0.5) ? 1 : 0);
    for (std::size_t i = first; used > wanted; ++i) {
      if (ids[i] >= 0) ids[i] = -1, --used;
    }
  }
}

struct Shape {
  Index experts, top_k;
  dropless_dtype dtype;
  std::string placement, recipe, shared;
};

Shape shape_of(const CaseRun& run) {
  return {run.integer("experts"),
          run.integer("top_k"),
          run.word("dtype") == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16,
          run.word("placement"),
          run.word("recipe"),
          run.word("shared")};
}

// What does not change from step to step.
void fill_parameters(const Shape& shape, LayerData& data, Random& random) {
  const Index e = shape.experts;
  const bool plain = shape.recipe == "plain";
  data.hidden = hidden, data.intermediate = inner;
  data.shared_intermediate = shape.shared == "no" ? 0 : inner;
  data.dtype = shape.dtype;
  data.route = make_args<dropless_route_settings>();
  data.route.num_experts = e, data.route.top_k = shape.top_k;
  data.route.score_function = DROPLESS_SCORE_SIGMOID;
  data.route.renormalize = 1, data.route.renormalize_eps = 1e-20;
  data.route.scaling_factor = 2;
  data.activation = make_args<dropless_activation_settings>();
  data.activation.kind = DROPLESS_RELU2;
  data.connect();
  data.settings.weight_placement = shape.placement == "early"   ? DROPLESS_WEIGHTS_EARLY
                                   : shape.placement == "input" ? DROPLESS_WEIGHTS_INPUT
                                                                : DROPLESS_WEIGHTS_LATE;
  data.settings.recipe = plain ? DROPLESS_RECIPE_PLAIN : DROPLESS_RECIPE_MXFP8;
  data.settings.gradient_format = shape.recipe == "mxfp8_e5m2" ? DROPLESS_E5M2 : DROPLESS_E4M3;

  data.router_weight.assign(at(e * hidden), 0.0);
  for (const Index place : random.permutation(e)) {
    data.expert_scale.push_back(static_cast<double>(1 + place % 2));
  }
  for (Index i = 0; i < e; ++i) {
    // Opposite weights for columns in which x is the same twice; in bf16 the router's part of d_x
    // would be rounded.
    for (Index pair = 0; pair < 4 && shape.dtype == DROPLESS_FP32; ++pair) {
      const double w = static_cast<double>(random.between(1, 3)) * sign(random);
      data.router_weight[at(i * hidden + 2 * pair)] = w;
      data.router_weight[at(i * hidden + 2 * pair + 1)] = -w;
    }
    append_first_matrix(data.gate_up, random);
    append_second_matrix(data.down, random);
  }
  if (plain && shape.placement != "input") {  // biases do not share the unit of a token
    data.gate_up_bias = small_integers(e * inner, random);
    data.down_bias = small_integers(e * hidden, random);
  }
  if (shape.shared == "no") return;
  append_first_matrix(data.shared_gate_up, random);
  append_second_matrix(data.shared_down, random);
  if (shape.shared == "gated") data.shared_gate.assign(at(hidden), 0.0);  // every gate is 1/2
}

void fill_tokens(LayerGroup& step, const std::string& load) {
  const CaseRun& run = step.run;
  LayerData& data = step.whole;
  Random random = run.random("tokens " + step.name);
  const bool plain = data.settings.recipe == DROPLESS_RECIPE_PLAIN;
  data.tokens = step.total_tokens();
  data.ids_are_given = true;
  reference::ExchangeSettings settings;
  settings.ranks = step.ranks;
  settings.num_experts = data.experts(), settings.top_k = data.route.top_k;
  for (Index from = 0; from < step.ranks; ++from) {
    Random draw = run.random("ids " + step.name + " " + std::to_string(from));
    auto ids = exchange_ids(load, settings, from, step.tokens[at(from)], draw, 0);
    leave_a_power_of_two(ids, data.route.top_k, draw);
    data.given_ids.insert(data.given_ids.end(), ids.begin(), ids.end());
  }
  Random cotangents = run.random("d_y " + step.name);
  for (Index t = 0; t < data.tokens; ++t) {
    const double d_unit = plain ? 1 : std::ldexp(1.0, static_cast<int>(random.between(-1, 1)));
    for (Index first = 0; first < hidden; first += block) {
      const double unit = plain ? 1 : std::ldexp(1.0, static_cast<int>(random.between(-1, 1)));
      for (Index h = first; h < first + block; ++h) {
        const bool twin = h < 8 && h % 2 == 1;
        const double x = random.chance(0.2) ? 0 : unit * sign(random);
        data.x.push_back(twin ? data.x.back() : x);
        step.whole_d_y.push_back(cotangents.chance(0.5) ? 0 : d_unit * sign(cotangents));
      }
    }
  }
}

void fill(LayerGroup& step, const std::string& load) {
  Random random = step.run.random("parameters");
  fill_parameters(shape_of(step.run), step.whole, random);
  fill_tokens(step, load);
  step.take_parts();
}

ParityClauses clauses_of(const LayerGroup& step) {
  if (step.whole.settings.recipe == DROPLESS_RECIPE_MXFP8) {
    return {"EXCHANGE-13", "EXCHANGE-13", "LAYER-4e", "LAYER-4c"};
  }
  return {"EXCHANGE-13", "EXCHANGE-13", "LAYER-4b", "LAYER-4c"};
}

void judge_step(const LayerGroup& step, const LayerCall& call, const ParityClauses& clauses) {
  judge_exactly(step, call, clauses, step.whole.settings.recipe == DROPLESS_RECIPE_PLAIN);
}

void require_data(const LayerGroup& step, const std::string& load) {
  const bool everywhere = load == "balanced" && step.run.word("share") == "even";
  if (!everywhere || step.total_tokens() < 16) return;
  require_traffic(step, step.whole.given_ids);
  Judge& judge = step.run.judge();
  judge.require(step.whole.experts() == 1 || trust::distinct(step.whole.expert_scale) > 1,
                "weights differ between experts");
  judge.require(trust::share_of_zeros(step.whole_d_y) < 0.7, "most cotangents are not zero");
  judge.require(trust::distinct(step.whole.x) > 2, "inputs differ");
}

// ---- layer.over_ranks_exact

void run_exact(CaseRun& run) {
  LayerGroup step(run, "only");
  fill(step, run.word("load"));
  LayerExchange exchange(step);
  step.part.exchange = exchange.handle();
  LayerCall call(run, step.part);
  call.forward(true);
  call.backward(step.d_y(), true);
  exchange.close();
  judge_step(step, call, clauses_of(step));
  require_data(step, run.word("load"));
}

// ---- layer.over_ranks_steps

// One handle, growing and shrinking: nothing of a larger step is left in a smaller one.
void run_steps(CaseRun& run) {
  const Index most = run.integer("tokens"), ranks = this_group().ranks();
  struct Plan {
    const char* name;
    std::vector<Index> tokens;
    std::string load;
  };
  const auto of = [&](const char* share, Index tokens) {
    return tokens_of_ranks(share, tokens, ranks);
  };
  const std::string& load = run.word("load");
  const std::vector<Plan> plans = {{"first", of("even", most), load},
                                   {"few", of("uneven", std::min<Index>(most, 2)), "to_first"},
                                   {"none", of("none", most), load},
                                   {"on the last", of("only_on_last", most / 2), "spread"},
                                   {"all again", of("uneven", most), load}};
  std::vector<std::unique_ptr<LayerGroup>> steps;
  for (const Plan& plan : plans) {
    steps.push_back(std::make_unique<LayerGroup>(run, plan.name, plan.tokens));
    fill(*steps.back(), plan.load);
  }
  LayerExchange exchange(*steps[0]);
  for (const auto& step : steps) {
    step->part.exchange = exchange.handle();
    LayerCall call(run, step->part);
    call.forward(true);
    call.backward(step->d_y(), true);
    judge_step(*step, call, {"LAYER-4f", "LAYER-4f", "LAYER-4f", "LAYER-4f"});
  }
  exchange.close();
  require_data(*steps[0], load);
}

// ---- layer.over_ranks_in_flight

// Two layers with handles of their own: forward A, forward B, backward B, backward A.
void run_in_flight(CaseRun& run) {
  const Index ranks = this_group().ranks();
  LayerGroup first(run, "A", tokens_of_ranks("even", run.integer("tokens"), ranks));
  LayerGroup second(run, "B", tokens_of_ranks("uneven", run.integer("tokens"), ranks));
  fill(first, run.word("load"));
  fill(second, "spread");
  std::reverse(second.whole.down.begin(), second.whole.down.end());  // a layer of its own
  second.take_parts();
  LayerExchange of_first(first), of_second(second);
  first.part.exchange = of_first.handle(), second.part.exchange = of_second.handle();
  LayerCall a(run, first.part), b(run, second.part);
  a.forward(true);
  b.forward(true);
  b.backward(second.d_y(), true);
  a.backward(first.d_y(), true);
  of_first.close();
  of_second.close();
  const ParityClauses clauses{"LAYER-4f", "LAYER-4f", "LAYER-4f", "LAYER-4f"};
  judge_step(second, b, clauses);
  judge_step(first, a, clauses);
  require_data(first, run.word("load"));
}

// ---- registration

std::vector<Parameter> exact_parameters() {
  std::vector<Parameter> all = rank_parameters();
  for (Parameter& more : std::vector<Parameter>{
           integer_parameter("experts", 1, 64, "experts E"),
           integer_parameter("top_k", 1, 4, "experts of a token, K"),
           word_parameter("load", exchange_load_names(), "where each rank sends its tokens"),
           word_parameter("dtype", {"bf16", "fp32"}, "of the input and the expert weights"),
           word_parameter("placement", {"late", "early", "input"}, "of the routing weight"),
           word_parameter("recipe", {"plain", "mxfp8", "mxfp8_e5m2"}, "of the expert products"),
           word_parameter("shared", {"no", "yes", "gated"}, "shared expert"),
           integer_parameter("seed", 0, std::int64_t{1} << 62, "of the random numbers")}) {
    all.push_back(std::move(more));
  }
  return all;
}

std::string exact_objection(const Values& values) {
  const Index experts = std::stoll(value_of(values, "experts"));
  if (std::stoll(value_of(values, "top_k")) > experts) return "top_k is above the experts";
  const Index ranks = std::stoll(value_of(values, "ranks"));
  if (ranks * std::stoll(value_of(values, "tokens")) > 640) {
    return "fp32 does not hold the sums over more than 640 tokens";
  }
  return rank_objection(values, experts);
}

struct ExactAxes {
  std::vector<std::string> ranks = {"4"}, tokens = {"13"}, share = {"even"}, nodes = {"one"};
  std::vector<std::string> experts = {"8"}, top_k = {"4"}, load = {"balanced"};
  std::vector<std::string> dtype = {"bf16"}, placement = {"late"}, recipe = {"plain"};
  std::vector<std::string> shared = {"yes"};
};

std::vector<Values> exact_cases(ExactAxes axes) {
  return pairwise({{"ranks", std::move(axes.ranks)},
                   {"tokens", std::move(axes.tokens)},
                   {"share", std::move(axes.share)},
                   {"nodes", std::move(axes.nodes)},
                   {"experts", std::move(axes.experts)},
                   {"top_k", std::move(axes.top_k)},
                   {"load", std::move(axes.load)},
                   {"dtype", std::move(axes.dtype)},
                   {"placement", std::move(axes.placement)},
                   {"recipe", std::move(axes.recipe)},
                   {"shared", std::move(axes.shared)},
                   {"seed", {"1"}}},
                  [](const Values& values) { return exact_objection(values).empty(); });
}

std::vector<Values> standard_exact() {
  const std::vector<std::string> placements = {"late", "early", "input"};
  const std::vector<std::string> recipes = {"plain", "mxfp8", "mxfp8_e5m2"};
  std::vector<Values> all =
      exact_cases({.ranks = {"4", "2", "1"},
                   .tokens = {"13", "1"},
                   .share = {"even", "uneven", "none_on_first", "only_on_last"},
                   .nodes = {"one", "two"},
                   .experts = {"8", "16", "12"},
                   .top_k = {"4", "2"},
                   .load = {"balanced", "to_first", "one_rank", "spread", "not_to_self", "zipf"},
                   .dtype = {"bf16", "fp32"},
                   .placement = placements,
                   .recipe = recipes,
                   .shared = {"yes", "no", "gated"}});
  for (Values& values : exact_cases({.ranks = {"8"}, .experts = {"16"}, .dtype = {"fp32"}})) {
    all.push_back(std::move(values));
  }
  for (Values& values : exact_cases({.share = {"none", "even"}, .load = {"all_empty"}})) {
    all.push_back(std::move(values));
  }
  return all;
}

// Chosen when somebody asks: every process builds the registry, and most run a case by its id.
std::vector<Values> select_exact(Tier tier) {
  std::vector<Values> smoke = exact_cases({.dtype = {"fp32"}});
  for (Values& values : exact_cases({.ranks = {"2"}, .recipe = {"mxfp8"}, .shared = {"gated"}})) {
    smoke.push_back(std::move(values));
  }
  if (tier == Tier::smoke) return smoke;
  return tiers(smoke, standard_exact(),
               exact_cases({.ranks = {"16", "8"},
                            .tokens = {"33"},
                            .share = {"uneven"},
                            .experts = {"32", "64"},
                            .load = exchange_load_names(),
                            .recipe = {"plain", "mxfp8"}}))(tier);
}

}  // namespace

void add_layer_over_ranks_exact(Registry& registry) {
  const std::vector<std::string> clauses = {"LAYER-1a", "LAYER-1f", "LAYER-4b",
                                            "LAYER-4c", "LAYER-4e", "EXCHANGE-13"};
  registry.add({"layer.over_ranks_exact",
                "Proves that a layer over R ranks gives what it gives on one, bit by bit, on data "
                "that the declared roundings leave exact: outputs and all gradients.",
                clauses, exact_parameters(), select_exact, run_exact, exact_objection});

  const std::vector<std::string> many = {"LAYER-1a", "LAYER-1f", "LAYER-4f"};
  const ExactAxes mixed = {.ranks = {"4", "2"},
                           .dtype = {"bf16", "fp32"},
                           .placement = {"late", "early", "input"},
                           .recipe = {"plain", "mxfp8"},
                           .shared = {"yes", "no"}};
  registry.add({"layer.over_ranks_steps",
                "Proves that steps with more, fewer and no tokens on one handle leave nothing "
                "behind for each other.",
                many, exact_parameters(), tiers(exact_cases({.ranks = {"2"}}), exact_cases(mixed)),
                run_steps, exact_objection});
  registry.add({"layer.over_ranks_in_flight",
                "Proves that two layers with handles of their own keep what their backward passes "
                "need: forward A, forward B, backward B, backward A.",
                many, exact_parameters(),
                tiers(exact_cases({.ranks = {"2"}, .dtype = {"fp32"}}), exact_cases(mixed)),
                run_in_flight, exact_objection});
}

}  // namespace dropless::conformance
