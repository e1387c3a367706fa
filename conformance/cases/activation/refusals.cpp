// SPDX-License-Identifier: Apache-2.0
// What activations must refuse (GENERAL-3), each beside a control that succeeds.
#include <algorithm>
#include <type_traits>

#include "conformance/cases/activation/setup.h"

namespace dropless::conformance {
namespace {

ActivationProblem good_problem(CaseRun& run) {
  ActivationProblem problem;
  problem.settings = activation_settings(run);
  problem.width = 20;
  problem.grouped = problem.counted = true;
  problem.counts = {3, 0, 6}, problem.offsets = {0, 8, 8, 16}, problem.length = 30;
  fill_numbers(run, problem, true);
  return problem;
}

// One fault, for the arguments of either direction. `copy` is the tensor that is bent; it and
// `settings` outlive the call.
struct Bend {
  dropless_tensor copy{};
  dropless_activation_settings settings{};

  dropless_tensor& tensor(const dropless_tensor*& pointer) {
    copy = *pointer;
    pointer = &copy;
    return copy;
  }
  dropless_activation_settings& setting(const dropless_activation_settings*& pointer) {
    settings = *pointer;
    pointer = &settings;
    return settings;
  }
};

// Words that concern both directions, then those of one.
const std::vector<std::string> kBoth = {"width_of_x",
                                        "rows_of_x",
                                        "length_of_weights",
                                        "dtype_of_x",
                                        "dtype_of_weights",
                                        "rank_of_x",
                                        "null_x",
                                        "null_data",
                                        "null_settings",
                                        "kind",
                                        "gate_up_layout",
                                        "falling_offsets",
                                        "offsets_beyond",
                                        "count_above_zone",
                                        "negative_count",
                                        "length_of_counts",
                                        "dtype_of_offsets",
                                        "rows_of_output",
                                        "width_of_output",
                                        "dtype_of_output",
                                        "null_output"};
const std::vector<std::string> kBackward = {"width_of_dh", "dtype_of_dh", "null_dh",
                                            "length_of_d_weights"};

template <class Args>
const dropless_tensor*& output_of(Args& args) {
  if constexpr (std::is_same_v<Args, dropless_activation_args>) {
    return args.h;
  } else {
    return args.d_x;
  }
}

template <class Args>
void bend_common(const std::string& what, Args& args, Bend& bend) {
  if (what == "width_of_x") --bend.tensor(args.x).shape[1];
  if (what == "rows_of_x") --bend.tensor(args.x).shape[0];
  if (what == "rank_of_x") bend.tensor(args.x).rank = 1;
  if (what == "dtype_of_x") bend.tensor(args.x).dtype = DROPLESS_I32;
  if (what == "null_data") bend.tensor(args.x).data = nullptr;
  if (what == "null_x") args.x = nullptr;
  if (what == "length_of_weights") --bend.tensor(args.row_weights).shape[0];
  if (what == "dtype_of_weights") bend.tensor(args.row_weights).dtype = DROPLESS_I32;
  if (what == "null_settings") args.settings = nullptr;
  if (what == "kind") bend.setting(args.settings).kind = 9;
  if (what == "gate_up_layout") bend.setting(args.settings).gate_up_layout = 5;
  if (what == "length_of_counts") --bend.tensor(args.counts).shape[0];
  if (what == "dtype_of_offsets") bend.tensor(args.offsets).dtype = DROPLESS_FP32;
  if (what == "rows_of_output") --bend.tensor(output_of(args)).shape[0];
  if (what == "width_of_output") --bend.tensor(output_of(args)).shape[1];
  if (what == "dtype_of_output") bend.tensor(output_of(args)).dtype = DROPLESS_I32;
  if (what == "null_output") output_of(args) = nullptr;
}

template <class Args>
void bend_zones(CaseRun& run, const std::string& what, const ActivationProblem& problem,
                Args& args) {
  std::vector<Index> offsets = problem.offsets, counts = problem.counts;
  if (what == "falling_offsets") offsets = {0, 8, 4, 16}, counts = {3, 0, 4};
  if (what == "offsets_beyond") offsets.back() = problem.length + 1;
  if (what == "count_above_zone") counts[2] = 9;
  if (what == "negative_count") counts[1] = -1;
  if (offsets == problem.offsets && counts == problem.counts) return;
  Buffers& buffers = run.buffers();
  args.offsets = buffers.input("wrong offsets", DROPLESS_I64, {4}, offsets).tensor();
  args.counts = buffers.input("wrong counts", DROPLESS_I64, {3}, counts).tensor();
}

void run_refusals(CaseRun& run) {
  const std::string& what = run.word("what");
  const ActivationProblem problem = good_problem(run);
  const bool of_values = what == "falling_offsets" || what == "offsets_beyond" ||
                         what == "count_above_zone" || what == "negative_count";
  // Values in device memory may go unseen where the profile says so.
  const bool unseen = of_values && run.implementation().memory_space != DROPLESS_HOST &&
                      run.profile().device_values == DROPLESS_DEVICE_VALUES_UNCHECKED;
  Bend bend;
  if (run.word("direction") == "forward") {
    ActivationCall call = forward_call(run, problem);
    perform(run, call);
    judge_forward(run, problem, call);
    bend_common(what, call.args, bend);
    bend_zones(run, what, problem, call.args);
    if (unseen) return;
    return run.refused("GENERAL-3", what, "activation_forward",
                       run.implementation().activation_forward, call.args);
  }
  ActivationBackwardCall call = backward_call(run, problem);
  perform(run, call);
  judge_backward(run, problem, call);
  auto& args = call.args;
  bend_common(what, args, bend);
  bend_zones(run, what, problem, args);
  if (what == "width_of_dh") --bend.tensor(args.dh).shape[1];
  if (what == "dtype_of_dh") bend.tensor(args.dh).dtype = DROPLESS_I64;
  if (what == "null_dh") args.dh = nullptr;
  if (what == "length_of_d_weights") --bend.tensor(args.d_row_weights).shape[0];
  if (unseen) return;
  run.refused("GENERAL-3", what, "activation_backward", run.implementation().activation_backward,
              args);
}

std::vector<Values> select_refusals(Tier tier) {
  std::vector<Values> smoke, standard, full;
  const auto row = [](bool forward, const std::string& what) {
    return Values{{"model", "gpt-oss-20b"},
                  {"direction", forward ? "forward" : "backward"},
                  {"what", what},
                  {"seed", "1"}};
  };
  // Every fault once in the standard tier, the directions taking turns; the others in the full one.
  bool forward = true;
  for (const std::string& what : kBoth) {
    const bool important = what == "width_of_x" || what == "count_above_zone";
    (important ? smoke : standard).push_back(row(forward, what));
    full.push_back(row(!forward, what));
    forward = !forward;
  }
  for (const std::string& what : kBackward) standard.push_back(row(false, what));
  return tier == Tier::smoke ? smoke : tier == Tier::standard ? standard : full;
}

}  // namespace

void add_activation_refusals(Registry& registry) {
  std::vector<std::string> whats = kBoth;
  whats.insert(whats.end(), kBackward.begin(), kBackward.end());
  registry.add({"activation.refusals",
                "Proves that an illegal request is refused and nothing is written.",
                {"GENERAL-3", "ACTIVATION-5a", "ACTIVATION-5b", "ACTIVATION-6"},
                {{"model", activation_models(), 0, 0, "published model: kind of the activation"},
                 {"direction", {"forward", "backward"}, 0, 0, "which of the two operations"},
                 {"what", whats, 0, 0, "what is wrong with the request"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                select_refusals,
                run_refusals,
                [](const Values& values) {
                  const std::string& what = value_of(values, "what");
                  const bool backward =
                      std::find(kBackward.begin(), kBackward.end(), what) != kBackward.end();
                  const bool none = backward && value_of(values, "direction") == "forward";
                  return std::string(none ? what + " concerns the backward direction" : "");
                }});
}

}  // namespace dropless::conformance
