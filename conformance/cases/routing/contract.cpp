// SPDX-License-Identifier: Apache-2.0
// Routing cases about the contract itself: no tokens, strides, repetition with other threads.
#include "conformance/cases/routing/gradient.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// ---- routing.empty

void run_empty(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data = model_data(run.model(), 0, DROPLESS_FP32, random);
  data.mask.clear();
  if (run.word("operation") == "forward") {
    RouteCall call(run, data);
    call.perform("GENERAL-4");
    run.judge().exact("GENERAL-4", "tokens_per_expert", *call.counts,
                      std::vector<Index>(at(data.experts()), 0));
    return;
  }
  data.scale.assign(at(data.experts()), 1.5);
  const RoutingGradientData gradient{data, {}, {}};
  RouteBackwardCall call(run, gradient);
  call.perform();
  run.judge().exact("GENERAL-4", "d_expert_scale", *call.d_expert_scale,
                    std::vector<double>(at(data.experts()), 0.0));
}

Family empty_family() {
  Family family;
  family.name = "routing.empty";
  family.purpose = "Without tokens, and with null data pointers, counts and gradients are zeros";
  family.clauses = {"GENERAL-4"};
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("operation", {"forward", "backward"}, "what is called")};
  const auto one = [](const char* model, const char* operation) {
    return Values{{"model", model}, {"operation", operation}};
  };
  family.select = tiers({one("deepseek-v3", "forward")},
                        {one("mixtral-8x7b", "forward"), one("gemma-4-26b-a4b", "backward")});
  family.run = run_empty;
  return family;
}

// ---- routing.strided

RoutingData typical_data(CaseRun& run, Index tokens, Random& random) {
  RoutingData data = model_data(run.model(), tokens, logits_dtype(run.word("dtype")), random);
  draw_clear_rows(run, data, normal_row(data, random, 2));
  return data;
}

void run_strided(CaseRun& run) {
  Random random = run.random("data");
  const RoutingData data = typical_data(run, 33, random);
  const Layout gap = {.row_gap = run.integer("gap"), .offset_bytes = 16, .poison = {}};
  RouteCall plain(run, data, {.prefix = "plain "});
  plain.perform();
  RouteCall call(run, data, {.inputs = gap, .outputs = gap});
  call.perform("GENERAL-6");
  judge_route(run, data, plain);
  run.judge().same_bytes("GENERAL-6", "ids", *call.ids, plain.ids->bytes());
  run.judge().same_bytes("GENERAL-6", "weights", *call.weights, plain.weights->bytes());
  run.judge().same_bytes("GENERAL-6", "scores", *call.scores, plain.scores->bytes());
  run.judge().same_bytes("GENERAL-6", "tokens_per_expert", *call.counts, plain.counts->bytes());

  if (run.implementation().route_backward == nullptr) return;
  const RoutingGradientData gradient = gradient_data(run, data, random);
  RouteBackwardCall plain_backward(run, gradient, {.prefix = "plain backward "});
  plain_backward.perform();
  RouteBackwardCall backward(run, gradient, {.prefix = "backward ", .inputs = gap, .outputs = gap});
  backward.perform();
  judge_gradient(run, gradient, plain_backward);
  run.judge().same_bytes("GENERAL-6", "d_logits", *backward.d_logits,
                         plain_backward.d_logits->bytes());
}

std::vector<std::string> every_routing_clause(std::vector<std::string> more) {
  for (const char* clause : {"ROUTING-1e", "ROUTING-2b", "ROUTING-3a", "ROUTING-5a", "ROUTING-5d",
                             "ROUTING-6a", "ROUTING-6b", "ROUTING-6c", "ROUTING-6d", "ROUTING-6g",
                             "ROUTING-10", "ROUTING-12a", "ROUTING-12d"}) {
    more.emplace_back(clause);
  }
  return more;
}

Family strided_family() {
  Family family;
  family.name = "routing.strided";
  family.purpose =
      "Rows that do not follow each other in memory, and buffers off the usual alignment, give "
      "the same bits, and the gaps stay as they were";
  family.clauses = every_routing_clause({"GENERAL-6"});
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits"),
                       integer_parameter("gap", 1, 64, "unused elements after each row")};
  const auto one = [](const char* model, const char* dtype, const char* gap) {
    return Values{{"model", model}, {"dtype", dtype}, {"gap", gap}};
  };
  family.select = tiers({one("mixtral-8x7b", "bf16", "3")},
                        {one("qwen3-30b-a3b", "fp32", "1"), one("gemma-4-26b-a4b", "bf16", "8")});
  family.run = run_strided;
  return family;
}

// ---- routing.without_scores

void run_without_scores(CaseRun& run) {
  Random random = run.random("data");
  const RoutingData data = typical_data(run, 33, random);
  RouteCall with(run, data, {.prefix = "with scores "});
  with.perform();
  RouteCall without(run, data);
  without.args.scores = nullptr;
  without.perform();
  judge_route(run, data, with);
  run.judge().same_bytes("ROUTING-1e", "ids", *without.ids, with.ids->bytes());
  run.judge().same_bytes("ROUTING-1e", "weights", *without.weights, with.weights->bytes());
  run.judge().same_bytes("ROUTING-1e", "tokens_per_expert", *without.counts, with.counts->bytes());
}

Family without_scores_family() {
  Family family;
  family.name = "routing.without_scores";
  family.purpose = "Scores that are not asked for are not needed: all other outputs are the same";
  family.clauses = every_routing_clause({});
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits")};
  const auto one = [](const char* model, const char* dtype) {
    return Values{{"model", model}, {"dtype", dtype}};
  };
  family.select = tiers({}, {one("deepseek-v3", "bf16"), one("gpt-oss-20b", "fp32")});
  family.run = run_without_scores;
  return family;
}

// ---- routing.determinism

// The thread counts of the calls; each adjacent pair must agree as far as the profile promises.
void run_determinism(CaseRun& run) {
  Random random = run.random("data");
  const RoutingData data = typical_data(run, 97, random);
  const RoutingGradientData gradient = gradient_data(run, data, random);
  const bool backward = run.implementation().route_backward != nullptr;
  const bool any_threads = run.profile().determinism == DROPLESS_DETERMINISTIC_ANY_THREADS;
  RouteCall first(run, data, {.prefix = "first ", .threads = 1});
  first.perform();
  judge_route(run, data, first);
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return;

  int previous_threads = 0;
  std::vector<std::uint8_t> ids, weights, scores, counts, d_logits;
  for (const int threads : {1, 1, 2, 2, 3, 3}) {
    const std::string prefix = std::to_string(run.buffers().outputs().size()) + " ";
    RouteCall call(run, data, {.prefix = prefix, .threads = threads});
    call.perform();
    RouteBackwardCall back(run, gradient, {.prefix = prefix, .threads = threads});
    if (backward) back.perform();
    if (previous_threads != 0 && (any_threads || threads == previous_threads)) {
      Judge& judge = run.judge();
      judge.same_bytes("GENERAL-5", "ids", *call.ids, ids);
      judge.same_bytes("GENERAL-5", "weights", *call.weights, weights);
      judge.same_bytes("GENERAL-5", "scores", *call.scores, scores);
      judge.same_bytes("GENERAL-5", "tokens_per_expert", *call.counts, counts);
      if (backward) judge.same_bytes("GENERAL-5", "d_logits", *back.d_logits, d_logits);
    }
    previous_threads = threads;
    ids = call.ids->bytes();
    weights = call.weights->bytes();
    scores = call.scores->bytes();
    counts = call.counts->bytes();
    d_logits = back.d_logits->bytes();
  }
}

Family determinism_family() {
  Family family;
  family.name = "routing.determinism";
  family.purpose =
      "Repeated with one, two and three threads, forward and backward give the bits that the "
      "profile promises";
  family.clauses = every_routing_clause({"GENERAL-5"});
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits")};
  const auto one = [](const char* model, const char* dtype) {
    return Values{{"model", model}, {"dtype", dtype}};
  };
  family.select = tiers({one("mixtral-8x7b", "fp32")},
                        {one("deepseek-v3", "fp32"), one("gpt-oss-20b", "bf16")});
  family.run = run_determinism;
  return family;
}

}  // namespace

void add_routing_contract(Registry& registry) {
  registry.add(empty_family());
  registry.add(strided_family());
  registry.add(without_scores_family());
  registry.add(determinism_family());
}

}  // namespace dropless::conformance
