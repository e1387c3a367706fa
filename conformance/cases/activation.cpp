// SPDX-License-Identifier: Apache-2.0
// Set-up of the activation cases: settings, numbers and buffers.
#include <cmath>
#include <limits>

#include "conformance/cases/activation/setup.h"
#include "conformance/cases/data.h"
#include "tolerances/interval.h"

namespace dropless::conformance {

std::vector<reference::RowKind> ActivationProblem::kinds() const {
  if (!grouped) {
    return std::vector<reference::RowKind>(static_cast<std::size_t>(length),
                                           reference::RowKind::real);
  }
  return reference::row_kinds(length, {offsets, counts});
}

double ActivationProblem::gate(Index row, Index i) const {
  return x[static_cast<std::size_t>(row * columns() +
                                    reference::gate_up_columns(settings, width, i).gate)];
}

double ActivationProblem::up(Index row, Index i) const {
  if (!gated()) return 0;
  return x[static_cast<std::size_t>(row * columns() +
                                    reference::gate_up_columns(settings, width, i).up)];
}

void ActivationProblem::set(Index row, Index i, double gate, double up) {
  const auto at = reference::gate_up_columns(settings, width, i);
  x[static_cast<std::size_t>(row * columns() + at.gate)] = gate;
  if (gated()) x[static_cast<std::size_t>(row * columns() + at.up)] = up;
}

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Most like a trained model, a third beyond every limit, a tenth tiny.
double input_value(const ActivationProblem& problem, Random& random) {
  const double limit =
      problem.settings.kind == DROPLESS_SWIGLU_CLAMPED ? problem.settings.limit : 0;
  for (;;) {
    const double pick = random.uniform();
    double value = 1.5 * random.normal();
    if (pick < 0.3) value = 24 * (2 * random.uniform() - 1);
    if (pick > 0.9) value *= std::exp2(-static_cast<double>(random.between(4, 30)));
    value = tolerances::round_to(problem.input, value);
    if (limit == 0 || std::abs(value) != limit) return value;
  }
}

}  // namespace

void poison_idle_rows(ActivationProblem& problem) {
  const auto kinds = problem.kinds();
  for (std::size_t row = 0; row < kinds.size(); ++row) {
    if (kinds[row] == reference::RowKind::real) continue;
    const Index r = static_cast<Index>(row);
    std::fill_n(problem.x.begin() + r * problem.columns(), problem.columns(), kNan);
    std::fill_n(problem.dh.begin() + r * problem.width, problem.width, kNan);
    if (problem.weighted) problem.weights[row] = kNan;
  }
}

void fill_numbers(const CaseRun& run, ActivationProblem& problem, bool weighted) {
  Random random = run.random("x"), rest = run.random("dh");
  problem.x.resize(static_cast<std::size_t>(element_count(problem.x_shape())));
  for (double& value : problem.x) value = input_value(problem, random);
  problem.dh = cotangent("zero_mean", problem.cotangent, problem.length, problem.width, rest);
  problem.weighted = weighted;
  for (Index row = 0; weighted && row < problem.length; ++row) {
    const double weight = row % 16 == 7 ? 0 : 0.05 + 1.9 * rest.uniform();
    problem.weights.push_back(tolerances::round_to(DROPLESS_FP32, weight));
  }
  poison_idle_rows(problem);
}

dropless_activation_settings activation_settings(const CaseRun& run) {
  dropless_activation_settings settings = run.model().activation;
  settings.struct_size = sizeof settings;
  settings.struct_version = DROPLESS_STRUCT_VERSION;
  const bool interleaved = run.has("gate_up") && run.word("gate_up") == "interleaved";
  settings.gate_up_layout =
      interleaved ? DROPLESS_GATE_UP_INTERLEAVED : DROPLESS_GATE_UP_CONCATENATED;
  return settings;
}

ActivationProblem activation_problem(const CaseRun& run) {
  const auto dtype = [](const std::string& word) {
    return word == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
  };
  const Model model = scaled(run.model(), run.integer("divisor"));
  ActivationProblem problem;
  problem.settings = activation_settings(run);
  problem.width = model.intermediate;
  problem.input = dtype(run.word("input")), problem.output = dtype(run.word("output"));
  // The cotangent of h has the type that h would have.
  problem.cotangent = problem.output;
  problem.length = run.integer("rows");
  const std::string& zones = run.word("zones");
  if (zones != "none") {
    problem.grouped = true, problem.counted = zones == "padded";
    Random random = run.random("zones");
    problem.counts = rows_per_expert(run.word("load"), model.experts, run.integer("rows"), random);
    problem.offsets = aligned_offsets(problem.counts, problem.counted ? 16 : 1, problem.counted);
    problem.length = problem.offsets.back() + 5;
  }
  if (run.has("strides") && run.word("strides") == "gaps") {
    problem.layout = {.row_gap = 5, .offset_bytes = 8};
  }
  fill_numbers(run, problem, run.has("weights") && run.word("weights") == "given");
  return problem;
}

namespace {

// Settings, x, weights and zones: the same in both directions.
template <class Args>
Buffer* common_arguments(CaseRun& run, const ActivationProblem& problem, Args& args) {
  Buffers& buffers = run.buffers();
  Buffer& x = buffers.input("x", problem.input, problem.x_shape(), problem.x, problem.layout);
  args.settings = &problem.settings;
  args.x = x.tensor();
  if (problem.weighted) {
    args.row_weights =
        buffers.input("row_weights", DROPLESS_FP32, {problem.length}, problem.weights).tensor();
  }
  const Index experts = static_cast<Index>(problem.counts.size());
  if (problem.grouped) {
    args.offsets = buffers.input("offsets", DROPLESS_I64, {experts + 1}, problem.offsets).tensor();
  }
  if (problem.counted) {
    args.counts = buffers.input("counts", DROPLESS_I64, {experts}, problem.counts).tensor();
  }
  return &x;
}

}  // namespace

ActivationCall forward_call(CaseRun& run, const ActivationProblem& problem) {
  ActivationCall call;
  call.args = make_args<dropless_activation_args>();
  call.x = common_arguments(run, problem, call.args);
  call.h = &run.buffers().output("h", problem.output, problem.h_shape(), problem.layout);
  call.args.h = call.h->tensor();
  return call;
}

ActivationBackwardCall backward_call(CaseRun& run, const ActivationProblem& problem) {
  Buffers& buffers = run.buffers();
  ActivationBackwardCall call;
  call.args = make_args<dropless_activation_backward_args>();
  call.x = common_arguments(run, problem, call.args);
  call.dh = &buffers.input("dh", problem.cotangent, problem.h_shape(), problem.dh, problem.layout);
  call.d_x = &buffers.output("d_x", problem.output, problem.x_shape(), problem.layout);
  call.args.dh = call.dh->tensor(), call.args.d_x = call.d_x->tensor();
  if (problem.weighted) {
    call.d_weights = &buffers.output("d_row_weights", DROPLESS_FP32, {problem.length});
    call.args.d_row_weights = call.d_weights->tensor();
  }
  return call;
}

void perform(CaseRun& run, ActivationCall& call, std::string_view clause) {
  run.perform("activation_forward", run.implementation().activation_forward, call.args, clause);
}

void perform(CaseRun& run, ActivationBackwardCall& call, std::string_view clause) {
  run.perform("activation_backward", run.implementation().activation_backward, call.args, clause);
}

std::vector<std::string> activation_models() {
  return {"mixtral-8x7b", "gpt-oss-20b", "deepseek-v4-flash", "gemma-4-26b-a4b",
          "nemotron-3-nano-30b-a3b"};
}

std::vector<Parameter> activation_parameters(std::vector<Parameter> more) {
  std::vector<std::string> names;
  for (const Model& model : models()) names.push_back(model.name);
  std::vector<Parameter> all = {
      {"model", names, 0, 0, "published model: kind, limits, experts and width"},
      {"divisor", {}, 1, 1024, "the width is divided by this"},
      {"rows", {}, 1, 1 << 20, "real rows"},
      load_parameter("how the rows spread over the experts"),
      {"zones", {"none", "tight", "padded"}, 0, 0, "offsets: none, exact, rounded up to 16 rows"},
      {"gate_up", {"concatenated", "interleaved"}, 0, 0, "layout of gate and up"},
      {"input", {"bf16", "fp32"}, 0, 0, "dtype of x"},
      {"output", {"bf16", "fp32"}, 0, 0, "dtype of h and dh, or of d_x"}};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"});
  return all;
}

void add_activation(Registry& registry) {
  add_activation_shapes(registry);
  add_activation_sweeps(registry);
  add_activation_limits(registry);
  add_activation_relations(registry);
  add_activation_refusals(registry);
}

}  // namespace dropless::conformance
