// SPDX-License-Identifier: Apache-2.0
// Optimizer cases about the contract itself: no elements, wrong shapes, alignment, repetition.
#include <limits>

#include "conformance/cases/optimizer/setup.h"

namespace dropless::conformance {
namespace {

AdamwData typical_data(const CaseRun& run, Index size) {
  Random random = run.random("data");
  AdamwData data = adamw_data(size, DROPLESS_FP32, DROPLESS_BF16, DROPLESS_FP32, random);
  return data;
}

const std::vector<std::string> step_clauses = {"OPTIMIZER-1a", "OPTIMIZER-1b", "OPTIMIZER-1d"};

std::vector<std::string> with_step_clauses(const char* clause) {
  std::vector<std::string> out = step_clauses;
  out.emplace_back(clause);
  return out;
}

// ---- optimizer.empty

void run_empty(CaseRun& run) {
  const AdamwData data = typical_data(run, 0);
  AdamwCall call(run, data);
  call.perform(0, "GENERAL-4");  // ends the case unless it succeeds
  run.judge().holds("GENERAL-4", "a step of no parameters", true, "OK", "OK");
}

Family empty_family() {
  Family family;
  family.name = "optimizer.empty";
  family.purpose = "A step of no parameters, with null data pointers, succeeds";
  family.clauses = {"GENERAL-4"};
  family.select = tiers({}, {Values{}});
  family.run = run_empty;
  return family;
}

// ---- optimizer.neutral

// A factor of zero is a step like any other: the rest of it still happens.
void run_neutral(CaseRun& run) {
  AdamwData data = typical_data(run, 101);
  const std::string& zero = run.word("zero");
  if (zero == "learning_rate") data.settings.learning_rate = 0;
  if (zero == "weight_decay") data.settings.weight_decay = 0;
  if (zero == "gradient") data.gradient.assign(data.gradient.size(), 0.0);
  AdamwCall call(run, data);
  call.perform();
  judge_adamw(run, data, call);
}

Family neutral_family() {
  Family family;
  family.name = "optimizer.neutral";
  family.purpose = "A step without learning rate, decay or gradient still does all the rest";
  family.clauses = step_clauses;
  const std::vector<std::string> words = {"learning_rate", "weight_decay", "gradient"};
  family.parameters = {word_parameter("zero", words, "what is zero")};
  family.select = tiers({{{"zero", "learning_rate"}}}, product({{"zero", words}}));
  family.run = run_neutral;
  return family;
}

// ---- optimizer.nan

// Every fifth gradient is NaN; the scale is zero or one.
void run_nan(CaseRun& run) {
  const AdamwData clean = typical_data(run, 101);
  AdamwData spoiled = clean;
  if (run.word("scale") == "zero") spoiled.settings.gradient_scale = 0;
  AdamwData reference_data = spoiled;
  Judged bad(101, false), good(101, true);
  for (std::size_t i = 0; i < bad.size(); i += 5) {
    spoiled.gradient[i] = std::numeric_limits<double>::quiet_NaN();
    bad[i] = true, good[i] = false;
  }
  AdamwCall before(run, reference_data, "clean ");
  before.perform();
  AdamwCall call(run, spoiled);
  call.perform();
  const std::vector<double> nan(101, std::numeric_limits<double>::quiet_NaN());
  Judge& judge = run.judge();
  judge.exact("GENERAL-2", "first_moment of a NaN gradient", *call.first_moment, nan, bad);
  judge.exact("GENERAL-2", "second_moment of a NaN gradient", *call.second_moment, nan, bad);
  judge.exact("GENERAL-2", "weight of a NaN gradient", *call.weight, nan, bad);
  const auto same = [&](const char* what, const Buffer& got, const Buffer& clean_run) {
    judge.same_bytes("OPTIMIZER-1c", what, got, clean_run.bytes(), good);
  };
  same("weight of other elements", *call.weight, *before.weight);
  same("first_moment of other elements", *call.first_moment, *before.first_moment);
  same("second_moment of other elements", *call.second_moment, *before.second_moment);
}

Family nan_family() {
  Family family;
  family.name = "optimizer.nan";
  family.purpose =
      "A NaN gradient makes its own element NaN, also under a gradient scale of 0, and no other";
  family.clauses = {"GENERAL-2", "OPTIMIZER-1c"};
  family.parameters = {word_parameter("scale", {"zero", "one"}, "gradient scale")};
  family.select = tiers({}, product({{"scale", {"zero", "one"}}}));
  family.run = run_nan;
  return family;
}

// ---- optimizer.refused_shapes

void run_refused_shapes(CaseRun& run) {
  const AdamwData data = typical_data(run, 33);
  AdamwCall call(run, data);
  call.perform();
  judge_adamw(run, data, call);
  const std::vector<double> ones(32, 1.0);
  const std::string& what = run.word("what");
  const dropless_tensor* shorter =
      run.buffers().in_out("shorter " + what, DROPLESS_FP32, {32}, ones).tensor();
  if (what == "gradient") call.args.gradient = shorter;
  if (what == "first_moment") call.args.first_moment = shorter;
  if (what == "second_moment") call.args.second_moment = shorter;
  if (what == "master") call.args.master = shorter;
  run.refused("GENERAL-3", "a shorter " + what, "adamw", run.implementation().adamw, call.args);
}

Family refused_shapes_family() {
  Family family;
  family.name = "optimizer.refused_shapes";
  family.purpose = "Tensors of different lengths are refused with everything untouched";
  family.clauses = with_step_clauses("GENERAL-3");
  const std::vector<std::string> words = {"gradient", "first_moment", "second_moment", "master"};
  family.parameters = {word_parameter("what", words, "the tensor that is too short")};
  const std::vector<Values> all = product({{"what", words}});
  family.select = tiers({all[0]}, all);
  family.run = run_refused_shapes;
  return family;
}

// ---- optimizer.determinism

void run_determinism(CaseRun& run) {
  AdamwData data = typical_data(run, 5001);
  AdamwCall first(run, data, "nearest ");
  first.perform();
  judge_adamw(run, data, first);
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return;
  const bool stochastic = run.word("rounding") == "stochastic";
  if (stochastic) data.rounding = DROPLESS_ROUND_STOCHASTIC, data.seed = 99;
  const bool any_threads = run.profile().determinism == DROPLESS_DETERMINISTIC_ANY_THREADS;
  int previous_threads = 0;
  std::vector<std::uint8_t> weight, first_moment, second_moment;
  for (const int threads : {1, 1, 2, 2, 3, 3}) {
    // Off the usual alignment: vector loops must not round differently at their ends.
    const Layout layout = {.row_gap = 0, .offset_bytes = 4 * threads, .poison = {}};
    AdamwCall call(run, data, std::to_string(run.buffers().outputs().size()) + " ", layout);
    call.perform(threads);
    if (previous_threads != 0 && (any_threads || threads == previous_threads)) {
      run.judge().same_bytes("GENERAL-5", "weight", *call.weight, weight);
      run.judge().same_bytes("GENERAL-5", "first_moment", *call.first_moment, first_moment);
      run.judge().same_bytes("GENERAL-5", "second_moment", *call.second_moment, second_moment);
    }
    previous_threads = threads;
    weight = call.weight->bytes();
    first_moment = call.first_moment->bytes();
    second_moment = call.second_moment->bytes();
  }
}

Family determinism_family() {
  Family family;
  family.name = "optimizer.determinism";
  family.purpose =
      "Repeated with one, two and three threads a step has the bits that the profile promises, "
      "stochastic rounding with a seed included";
  family.clauses = with_step_clauses("GENERAL-5");
  family.parameters = {word_parameter("rounding", {"nearest", "stochastic"}, "of bf16 weights")};
  family.select = tiers({}, product({{"rounding", {"nearest", "stochastic"}}}));
  family.run = run_determinism;
  return family;
}

// ---- optimizer.strides

// The parameter, its gradient and its state as columns of matrices.
void run_strides(CaseRun& run) {
  AdamwData data = typical_data(run, 301);
  data.has_master = run.word("master") == "yes";
  AdamwCall dense(run, data, "dense ");
  dense.perform();
  judge_adamw(run, data, dense);
  for (const Index gap : {1, 6}) {
    const std::string what = " with gaps of " + std::to_string(gap);
    const Layout layout = {.row_gap = gap, .offset_bytes = 4 * gap, .poison = {}};
    AdamwCall call(run, data, std::to_string(gap) + " ", layout);
    call.perform(0, "GENERAL-6");
    if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) {
      judge_adamw(run, data, call);
      continue;
    }
    const auto same = [&](const char* name, const Buffer& got, const Buffer& expected) {
      run.judge().same_bytes("GENERAL-6", name + what, got, expected.bytes());
    };
    same("weight", *call.weight, *dense.weight);
    same("first_moment", *call.first_moment, *dense.first_moment);
    same("second_moment", *call.second_moment, *dense.second_moment);
    if (data.has_master) same("master", *call.master, *dense.master);
  }
}

Family strides_family() {
  Family family;
  family.name = "optimizer.strides";
  family.purpose = "Elements that do not follow each other in memory give the same bits";
  family.clauses = with_step_clauses("GENERAL-6");
  family.clauses.insert(family.clauses.end(), {"OPTIMIZER-1c", "OPTIMIZER-1e"});
  family.parameters = {word_parameter("master", {"no", "yes"}, "fp32 weights beside bf16 ones")};
  family.select = tiers({{{"master", "yes"}}}, product({{"master", {"no", "yes"}}}));
  family.run = run_strides;
  return family;
}

}  // namespace

void add_optimizer_contract(Registry& registry) {
  registry.add(empty_family());
  registry.add(neutral_family());
  registry.add(nan_family());
  registry.add(refused_shapes_family());
  registry.add(determinism_family());
  registry.add(strides_family());
}

}  // namespace dropless::conformance
