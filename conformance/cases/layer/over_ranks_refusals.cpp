// SPDX-License-Identifier: Apache-2.0
// A layer and a handle that do not fit each other: LAYER-4g. Each refusal stands between two steps
// that succeed.
#include <algorithm>

#include "conformance/cases/data.h"
#include "conformance/cases/exchange/setup.h"
#include "conformance/cases/layer/over_ranks.h"
#include "conformance/cases/routing/setup.h"

namespace dropless::conformance {
namespace {

using Forward = dropless_layer_args;
using Parameters = dropless_layer_parameters;

const std::vector<std::string>& faults() {
  static const std::vector<std::string> all = {"handle_of_more_experts",
                                               "handle_of_another_top_k",
                                               "more_tokens_than_the_handle",
                                               "rows_longer_than_the_handle",
                                               "all_experts_on_every_rank",
                                               "an_expert_too_few",
                                               "no_exchange",
                                               "more_tokens_on_one_rank"};
  return all;
}

// The handle of a request that is to be refused.
ExchangeRoom room_for(const LayerGroup& step, const std::string& what) {
  ExchangeRoom room = LayerExchange::room_of(step);
  if (what == "handle_of_more_experts") room.experts *= 2;
  if (what == "handle_of_another_top_k") room.top_k += 1;
  if (what == "more_tokens_than_the_handle") room.tokens -= 1;
  if (what == "rows_longer_than_the_handle") room.row_bytes = 2 * step.whole.hidden - 2;
  return room;
}

void change(const LayerGroup& step, const std::string& what, Forward& args, Parameters& parameters,
            dropless_tensor& tensor) {
  if (what == "no_exchange") args.exchange = nullptr;
  if (what != "all_experts_on_every_rank" && what != "an_expert_too_few") return;
  tensor = *parameters.gate_up;
  tensor.shape[0] = what == "an_expert_too_few" ? step.local_experts() - 1 : step.whole.experts();
  if (what == "all_experts_on_every_rank") tensor.strides[0] = 0;  // no such memory is needed
  parameters.gate_up = &tensor;
}

void judge_step(const LayerGroup& step) {
  LayerCall call(step.run, step.part);
  call.forward(true);
  call.backward(step.d_y(), true);
  judge_over_ranks(step, call, {"LAYER-4a", "LAYER-4a", "LAYER-4b", "LAYER-4c"});
}

void fill(LayerGroup& step) {
  fill_layer(step.run, step.whole, step.total_tokens());
  Random random = step.run.random("d_y");
  step.whole_d_y =
      cotangent("zero_mean", step.whole.dtype, step.whole.tokens, step.whole.hidden, random);
  step.take_parts();
}

void run_refusals(CaseRun& run) {
  const std::string& what = run.word("what");
  LayerGroup step(run, "only");
  fill(step);
  LayerExchange good(step);
  step.part.exchange = good.handle();
  judge_step(step);  // the control
  const bool one_rank = what == "more_tokens_on_one_rank";
  std::vector<Index> tokens = step.tokens;
  if (one_rank) tokens.back() = room_for(step, what).tokens + 1;  // it may have had fewer
  LayerGroup unfit(run, "unfit", tokens);
  fill(unfit);
  LayerExchange bad(step, room_for(step, what));
  const bool other_handle = room_for(step, what).experts != step.whole.experts() ||
                            what.find("the_handle") != std::string::npos ||
                            what == "handle_of_another_top_k";
  unfit.part.exchange = other_handle ? bad.handle() : good.handle();
  LayerCall call(run, unfit.part);
  dropless_tensor tensor{};
  call.refused_forward(what, "LAYER-4g", [&](Forward& args, Parameters& parameters) {
    change(unfit, what, args, parameters, tensor);
  });
  bad.close();
  judge_step(step);
  good.close();
}

std::string objection(const Values& values) {
  const Index ranks = std::stoll(value_of(values, "ranks"));
  if (ranks < 2) return "one rank has nothing to disagree about";
  const std::vector<Index> tokens =
      tokens_of_ranks(value_of(values, "share"), std::stoll(value_of(values, "tokens")), ranks);
  if (value_of(values, "what") == "more_tokens_than_the_handle" &&
      *std::max_element(tokens.begin(), tokens.end()) == 0) {
    return "no handle has room for fewer than no tokens";
  }
  return rank_objection(values, 8);
}

}  // namespace

void add_layer_over_ranks_refusals(Registry& registry) {
  std::vector<Parameter> parameters = rank_parameters();
  for (Parameter& more : std::vector<Parameter>{
           word_parameter("model", {"mixtral-8x7b"}, "published model"),
           integer_parameter("divisor", 1, 1024, "widths are divided by this"),
           word_parameter("dtype", {"bf16"}, "of the input and the expert weights"),
           word_parameter("placement", {"late"}, "of the routing weight"),
           word_parameter("recipe", {"plain"}, "of the expert products"),
           word_parameter("routing", {"router"}, "ids from the router"),
           word_parameter("mask", {"none"}, "masked tokens"),
           word_parameter("what", faults(), "what does not fit"),
           integer_parameter("seed", 0, std::int64_t{1} << 62, "of the random numbers")}) {
    parameters.push_back(std::move(more));
  }
  const auto of = [](const char* ranks) {
    return product({{"ranks", {ranks}},
                    {"tokens", {"5"}},
                    {"share", {"even"}},
                    {"nodes", {"one"}},
                    {"model", {"mixtral-8x7b"}},
                    {"divisor", {"128"}},
                    {"dtype", {"bf16"}},
                    {"placement", {"late"}},
                    {"recipe", {"plain"}},
                    {"routing", {"router"}},
                    {"mask", {"none"}},
                    {"what", faults()},
                    {"seed", {"1"}}});
  };
  registry.add({"layer.over_ranks_refusals",
                "Proves that a layer whose handle or experts do not fit is refused on every rank, "
                "with every output untouched, and that the next step succeeds.",
                {"LAYER-1a", "LAYER-1b", "LAYER-1f", "LAYER-1g", "LAYER-4a", "LAYER-4b", "LAYER-4c",
                 "LAYER-4g"},
                parameters,
                tiers({of("2").front()}, of("4")),
                run_refusals,
                objection});
}

}  // namespace dropless::conformance
