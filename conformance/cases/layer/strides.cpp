// SPDX-License-Identifier: Apache-2.0
// A layer whose tensors are parts of larger ones: the same bits as from dense ones, and nothing
// written between the rows (GENERAL-6).
#include <algorithm>

#include "conformance/cases/data.h"
#include "conformance/cases/layer/setup.h"
#include "conformance/cases/routing/setup.h"

namespace dropless::conformance {
namespace {

// The tensors that are spread together. Without names: all of rank 1, as columns of matrices.
struct Group {
  const char* word;
  std::vector<std::string_view> names;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"inputs", {"x", "token_mask", "given_ids"}},
      {"parameters",
       {"router_weight", "router_bias", "expert_bias", "expert_scale", "gate_up", "gate_up_bias",
        "down", "down_bias", "shared_gate_up", "shared_down", "shared_gate"}},
      {"cotangents", {"d_y", "d_logits"}},
      {"outputs", {"y", "ids", "tokens_per_expert", "d_x"}},
      {"gradients",
       {"d_router_weight", "d_router_bias", "d_expert_scale", "d_gate_up", "d_gate_up_bias",
        "d_down", "d_down_bias", "d_shared_gate_up", "d_shared_down", "d_shared_gate"}},
      {"vectors", {}}};
  return all;
}

std::vector<std::string> group_words() {
  std::vector<std::string> words;
  for (const Group& group : groups()) words.emplace_back(group.word);
  return words;
}

// In elements: between two rows, and from a 256-byte boundary to the first.
struct Spread {
  Index gap, offset;
  bool saved;  // the backward pass has what the forward pass kept, or makes it from its inputs
};
// Rows and a start that no vector load fits, then ones that suit the fast paths.
constexpr Spread spreads[] = {{5, 2, false}, {16, 0, true}};

// `with_gaps` counts the tensors in which there is something between two rows.
LayoutOf layouts_of(const Group& group, const Spread& spread, Index& with_gaps) {
  return [&group, spread, &with_gaps](std::string_view name, dropless_dtype dtype,
                                      const Shape& shape) -> Layout {
    const bool columns = group.names.empty(), is_vector = shape.size() == 1;
    const bool meant =
        columns ? is_vector
                : std::find(group.names.begin(), group.names.end(), name) != group.names.end();
    if (!meant) return {};
    Layout layout;
    layout.offset_bytes = spread.offset * static_cast<Index>(dtype_bytes(dtype));
    if (is_vector && !columns) return layout;
    layout.row_gap = spread.gap;
    const Index rows = columns ? shape.back() : element_count(shape) / shape.back();
    with_gaps += rows > 1 ? 1 : 0;
    return layout;
  };
}

struct Result {
  std::string name;
  std::vector<std::uint8_t> bytes;
  const Buffer* buffer;
};

std::vector<Result> results_of(const LayerCall& call) {
  std::vector<Result> results;
  const auto add = [&](const char* name, const Buffer& buffer) {
    results.push_back({name, buffer.bytes(), &buffer});
  };
  add("y", *call.y), add("ids", *call.ids), add("tokens_per_expert", *call.counts);
  add("d_x", *call.d_x);
  for (const auto& gradient : call.gradients) add(gradient.name, *gradient.buffer);
  return results;
}

void run_strides(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  Random random = run.random("d_y"), more = run.random("d_logits");
  const auto d_y = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, random);
  std::vector<double> d_logits(static_cast<std::size_t>(data.tokens * data.experts()));
  for (double& d : d_logits) d = static_cast<double>(more.between(-64, 64)) / 64;
  const auto forward_and_backward = [&](LayerCall& call, bool saved) {
    call.d_logits = d_logits;
    call.forward(saved);
    call.backward(d_y, saved);
  };
  const auto judge = [&](const LayerCall& call, const char* output, const char* gradients) {
    const Replay replay = judge_routing(run, data, call);
    judge_output(run, data, call, replay, output);
    judge_gradients(run, data, call, replay, d_y, gradients);
  };

  const std::string& word = run.word("tensors");
  const Group& group = *std::find_if(groups().begin(), groups().end(),
                                     [&](const Group& one) { return one.word == word; });
  LayerCall dense(run, data);
  for (const Spread& spread : spreads) {
    run.buffers().poison_outputs();
    forward_and_backward(dense, spread.saved);
    if (&spread == spreads) judge(dense, "LAYER-1a", "LAYER-1e");
    const std::vector<Result> expected = results_of(dense);
    Index with_gaps = 0;
    LayerCall call(run, data, layouts_of(group, spread, with_gaps));
    call.demanded_by = "GENERAL-6";
    forward_and_backward(call, spread.saved);
    run.judge().require(with_gaps > 0, "a tensor has gaps between its rows");
    if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) {  // bits mean nothing then
      judge(call, "GENERAL-6", "GENERAL-6");
      continue;
    }
    const std::vector<Result> got = results_of(call);
    const std::string what = " with gaps of " + std::to_string(spread.gap);
    for (std::size_t i = 0; i < got.size(); ++i) {
      run.judge().same_bytes("GENERAL-6", got[i].name + what, *got[i].buffer, expected[i].bytes);
    }
  }
}

std::vector<Axis> stride_axes(std::vector<std::string> models, std::vector<std::string> words) {
  return {{"tensors", std::move(words)},
          {"model", std::move(models)},
          {"divisor", {"160"}},
          {"tokens", {"33"}},
          {"dtype", {"bf16"}},
          {"placement", {"late"}},
          {"recipe", {"plain"}},
          {"routing", {"router"}},
          {"mask", {"none"}},
          {"seed", {"1"}}};
}

std::vector<Values> select_strides(Tier tier) {
  if (tier == Tier::full) return {};
  // A shared expert; biases; an expert bias.
  std::vector<Values> smoke = product(stride_axes({"llama-4-scout"}, group_words()));
  const auto add = [](std::vector<Values>& to, const std::vector<Axis>& axes) {
    for (Values& values : product(axes)) to.push_back(std::move(values));
  };
  add(smoke, stride_axes({"gpt-oss-20b"}, {"parameters", "gradients", "vectors"}));
  add(smoke, stride_axes({"ernie-4-5-21b-a3b"}, {"vectors"}));
  if (tier == Tier::smoke) return smoke;
  // Beside those: none of them; a shared gate.
  auto axes = stride_axes(
      {"llama-4-scout", "gpt-oss-20b", "mixtral-8x7b", "qwen1-5-moe-a2-7b", "ernie-4-5-21b-a3b"},
      group_words());
  axes[4].values = {"bf16", "fp32"}, axes[5].values = {"late", "early", "input"};
  axes[6].values = {"plain", "mxfp8", "mxfp8_e5m2"};
  axes[7].values = {"router", "given"}, axes[8].values = {"none", "some"};
  std::vector<Values> standard = pairwise(axes);
  add(standard, stride_axes({"gemma-4-26b-a4b"}, {"vectors"}));  // scales of experts
  return without(standard, smoke);
}

}  // namespace

void add_layer_strides(Registry& registry) {
  registry.add(
      {"layer.strides",
       "Proves for one group of tensors after the other that gaps between rows, and a start off "
       "every alignment, change no bit of a whole layer and stay as they are.",
       {"GENERAL-6", "LAYER-1a", "LAYER-1b", "LAYER-1e", "LAYER-1f", "LAYER-1g"},
       {{"tensors", group_words(), 0, 0, "which of them have gaps between their rows"},
        {"model", top_k_model_names(), 0, 0, "published model"},
        {"divisor", {}, 1, 1024, "widths are divided by this"},
        {"tokens", {}, 2, 1 << 16, "tokens T"},
        {"dtype", {"bf16", "fp32"}, 0, 0, "of the input and the expert weights"},
        {"placement", {"late", "early", "input"}, 0, 0, "of the routing weight"},
        {"recipe", {"plain", "mxfp8", "mxfp8_e5m2"}, 0, 0, "of the expert products"},
        {"routing", {"router", "given"}, 0, 0, "ids from the router, or handed in"},
        {"mask", {"none", "some"}, 0, 0, "masked tokens"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
       select_strides,
       run_strides});
}

}  // namespace dropless::conformance
