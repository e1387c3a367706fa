// SPDX-License-Identifier: Apache-2.0
// What the layer cases share: a layer with parameters of a published model's shape, the two calls,
// and their judgement against the reference under the bounds of a whole layer.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/selection.h"
#include "reference/layer.h"
#include "tolerances/layer.h"

namespace dropless::conformance {

// All values are exactly representable in their formats. Empty where the model has none.
struct LayerData {
  dropless_route_settings route{};
  dropless_activation_settings activation{};
  dropless_layer_settings settings{};
  Index tokens = 0, hidden = 0, intermediate = 0, shared_intermediate = 0;
  dropless_dtype dtype = DROPLESS_BF16;         // of x, expert weights and gradients
  dropless_dtype router_dtype = DROPLESS_FP32;  // of the router weight
  std::vector<double> x;
  std::vector<std::uint8_t> mask;
  std::vector<Index> given_ids;
  std::vector<double> router_weight, router_bias, expert_bias, expert_scale;
  std::vector<double> gate_up, gate_up_bias, down, down_bias;
  std::vector<double> shared_gate_up, shared_down, shared_gate;
  // Over ranks (LAYER-4): the group's handle, and how many experts the expert tensors hold (0: E).
  dropless_exchange* exchange = nullptr;
  Index local_experts = 0;
  bool over_ranks = false;     // sums over a token's rows may be rounded as the profile declares
  bool ids_are_given = false;  // also where no token has any

  LayerData() = default;
  LayerData(const LayerData&) = delete;  // settings point into the object
  LayerData& operator=(const LayerData&) = delete;
  void connect();  // sets the pointers of `settings`; call after filling route and activation

  [[nodiscard]] Index experts() const { return route.num_experts; }
  [[nodiscard]] Index held_experts() const { return local_experts > 0 ? local_experts : experts(); }
  [[nodiscard]] Index gate_up_rows(Index width) const;  // 2I, or I for relu2
  [[nodiscard]] reference::LayerParameters parameters() const;
};

// From the parameters model, divisor, tokens, dtype, placement, recipe, routing, mask; another
// number of tokens where one is given.
void fill_layer(const CaseRun& run, LayerData& data, Index tokens = -1);

// How the tensors of a call lie in memory, by their names. A tensor of rank 1 with a gap is a
// column of a matrix. Empty: all of them are dense.
using LayoutOf =
    std::function<Layout(std::string_view name, dropless_dtype dtype, const Shape& shape)>;

// Buffers and arguments of a forward call and of a backward call on the same inputs.
class LayerCall {
 public:
  LayerCall(CaseRun& run, const LayerData& data, LayoutOf layouts = {});
  void forward(bool keep);
  // d_y [T,H] in the dtype of the layer. With the state that the forward call kept, or without any.
  void backward(std::span<const double> d_y, bool use_saved);
  void release();
  // Refused requests: the call with a change (GENERAL-3).
  using Forward = dropless_layer_args;
  using Parameters = dropless_layer_parameters;
  void refused_forward(std::string_view why, std::string_view clause,
                       const std::function<void(Forward&, Parameters&)>& to);
  // Settings for the next calls: recompute and offload.
  dropless_layer_settings settings;
  // [T,E] of further losses, for the next backward calls; empty: none.
  std::vector<double> d_logits;
  // A parameter's memory: its contents may change between two calls.
  [[nodiscard]] Buffer& memory_of(const std::string& name) { return *memory_.at(name); }

  // False: calls are handed over and not waited for. They must have succeeded before.
  bool waits = true;
  // The clause that a call breaks which does not succeed.
  std::string_view demanded_by = "GENERAL-1";

  Buffer *x, *y, *ids, *counts;
  struct Gradient {
    const char* name;
    Buffer* buffer;
    Index per_expert;  // elements per expert, 0 where experts have no part of their own
  };
  std::vector<Gradient> gradients;  // after backward()
  Buffer* d_x = nullptr;

 private:
  const dropless_tensor* parameter(const char* name, dropless_dtype dtype, Shape shape,
                                   const std::vector<double>& values);
  // Buffers laid out as wanted, and a tensor by which they are handed in.
  template <class Value>
  Buffer& input(const char* name, dropless_dtype dtype, Shape shape,
                const std::vector<Value>& values);
  Buffer& output(const char* name, dropless_dtype dtype, Shape shape, Poison poison);
  Layout layout(const char* name, dropless_dtype dtype, Shape& shape) const;
  const dropless_tensor* tensor_of(const Buffer& buffer, std::size_t rank);
  template <class Args>
  void perform(std::string_view operation, dropless_status (*entry)(void*, dropless_call*, Args*),
               Args& args) {
    if (waits) return run_.perform(operation, entry, args, demanded_by);
    dropless_call call = call_on_queue(run_.implementation());
    hand_over(operation, entry(run_.implementation().context, &call, &args), call);
  }
  static dropless_call call_on_queue(const dropless_implementation& implementation);
  void hand_over(std::string_view operation, dropless_status status, const dropless_call& call);

  CaseRun& run_;
  const LayerData& data_;
  LayoutOf layouts_;
  std::deque<dropless_tensor> columns_;
  Buffer* d_y_ = nullptr;
  std::vector<double> d_y_values_;
  dropless_layer_parameters parameters_{}, wanted_{};
  dropless_layer_args args_{};
  std::map<std::string, Buffer*> memory_;
  bool holds_saved_ = false;
};

// Ids and counts (LAYER-1a), then the layer replayed with these very ids.
struct Replay {
  std::vector<Index> ids;
  reference::LayerOutput output;
};
Replay judge_routing(CaseRun& run, const LayerData& data, const LayerCall& call);
// y; `clause` for tokens with routed experts, LAYER-1b for tokens that only the shared expert
// serves.
void judge_output(CaseRun& run, const LayerData& data, const LayerCall& call, const Replay& replay,
                  const std::string& clause);
void judge_gradients(CaseRun& run, const LayerData& data, const LayerCall& call,
                     const Replay& replay, std::span<const double> d_y, const std::string& clause);

// What judge_gradients judges by.
struct ExpectedGradients {
  reference::LayerGradient value;
  tolerances::LayerBackward bound;
  std::vector<Index> counts;  // rows of each expert
};
ExpectedGradients expected_gradients(const CaseRun& run, const LayerData& data,
                                     const Replay& replay, std::span<const double> d_y,
                                     std::span<const double> d_logits = {});
Replay replay_with(const CaseRun& run, const LayerData& data, std::vector<Index> ids);
// One gradient of the layer with its value, its bound, and whether it is one of the experts'
// matrices and biases, which are spread over ranks.
struct GradientOf {
  const char* name;
  const reference::Doubles& value;
  const tolerances::Approximate& bound;
  bool of_experts;
};
std::vector<GradientOf> parameter_gradients(const ExpectedGradients& expected);

void add_layer_bounded(Registry& registry);
void add_layer_contract(Registry& registry);
void add_layer_exact(Registry& registry);
void add_layer_queue(Registry& registry);
void add_layer_stages(Registry& registry);
void add_layer_state(Registry& registry);
void add_layer_strides(Registry& registry);

}  // namespace dropless::conformance
