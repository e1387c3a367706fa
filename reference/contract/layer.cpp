// SPDX-License-Identifier: Apache-2.0
// layer_forward, layer_backward and layer_release behind the contract.
#include <memory>
#include <mutex>
#include <unordered_map>

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/layer_call.h"
#include "reference/contract/layer_exchange.h"
#include "reference/contract/operations.h"

namespace dropless::reference::contract {
namespace {

// What a forward call keeps for its backward call. With recompute the trace is made again
// (LAYER-3); it gives the same bits, since the reference has one order of summation.
struct SavedLayer {
  LayerDimensions dimensions;
  const ExchangeBoard* board = nullptr;  // null on one rank
  Index plans = 0;                       // of the board, this call's included
  std::optional<LayerTrace> trace;
};

// States that were handed out and not yet released, so that a stale or foreign pointer is refused.
class SavedLayers {
 public:
  const void* add(SavedLayer state) {
    auto saved = std::make_unique<SavedLayer>(std::move(state));
    const std::lock_guard lock(mutex_);
    const void* const key = saved.get();
    saved_.emplace(key, std::move(saved));
    return key;
  }
  const SavedLayer& find(const void* key) {
    const std::lock_guard lock(mutex_);
    const auto found = saved_.find(key);
    if (found == saved_.end()) {
      throw Refused("saved is not a state of this layer, or was released before");
    }
    return *found->second;
  }
  void release(const void* key) {
    const std::lock_guard lock(mutex_);
    saved_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<SavedLayer>> saved_;
};

SavedLayers& saved_layers() {
  static SavedLayers layers;
  return layers;
}

void write_gradient(const LayerCall::Views& views, Parameter p, const Doubles& values) {
  const auto& view = views[static_cast<std::size_t>(p)];
  if (!view) return;
  check_size(values.size(), view->size(), "gradient of a layer parameter");
  write_values(*view, values);
}

// The routing that the handle holds has to be that of the forward pass; with recomputation it is
// planned again (EXCHANGE-12).
void check_plan(const SavedLayer& saved, const LayerMeeting& ranks) {
  if (saved.board != ranks.board()) throw Refused("saved was made with another exchange");
  if (saved.trace && saved.plans != ranks.plans()) {
    throw Refused(
        "the exchange was planned again since the forward call: layers in flight at the same time "
        "need a handle each, or recompute = 1");
  }
}

void forward(const dropless_profile& profile, const dropless_layer_args& a, LayerMeeting& ranks,
             dropless_layer_args* args) {
  const LayerCall call(a, ranks.settings());
  const auto& [tokens, hidden, intermediate, shared] = call.dimensions();
  const TensorView y = tensor(a.y, "y", Element::real, {tokens, hidden});
  if (y.dtype() != call.x_dtype()) throw Refused("y has another dtype than x");
  const TensorView ids = tensor(a.ids, "ids", Element::id, {tokens, call.route().top_k});
  const TensorView counts =
      tensor(a.tokens_per_expert, "tokens_per_expert", Element::i64, {call.route().num_experts});
  if (a.keep != 0 && !DROPLESS_HAS_FIELD(args, dropless_layer_args, saved)) {
    throw Refused("arguments.struct_size leaves no room for saved, although keep is set");
  }

  LayerExchange* const exchange =
      ranks.begin(layer_terms(call.settings(), tokens, hidden, call.x_dtype(), LayerPass::forward));
  LayerOutput output =
      layer(call.settings(), profile, call.parameters(), call.input(), {}, exchange);
  write_values(y, output.y);
  write_integers(ids, output.trace.routing.ids);
  write_integers(counts, output.trace.routing.tokens_per_expert);
  if (a.keep == 0) return;
  SavedLayer saved{call.dimensions(), ranks.board(), ranks.plans(), {}};
  if (call.settings().recompute == 0) saved.trace = std::move(output.trace);
  args->saved = const_cast<void*>(saved_layers().add(std::move(saved)));
}

void backward(const dropless_profile& profile, const dropless_layer_backward_args& a,
              const dropless_layer_args& forward, LayerMeeting& ranks) {
  const LayerCall call(forward, ranks.settings());
  const auto& [tokens, hidden, intermediate, shared] = call.dimensions();
  const TensorView d_y = tensor(a.d_y, "d_y", Element::real, {tokens, hidden});
  const TensorView d_x = tensor(a.d_x, "d_x", Element::real, {tokens, hidden});
  const auto d_logits =
      optional_tensor(a.d_logits, "d_logits", Element::fp32, {tokens, call.route().num_experts});
  const LayerCall::Views views = call.gradient_views(a.gradients);

  const bool has_saved = forward.keep != 0 && forward.saved != nullptr;
  const SavedLayer* const saved = has_saved ? &saved_layers().find(forward.saved) : nullptr;
  if (saved != nullptr && saved->dimensions != call.dimensions()) {
    throw Refused("saved belongs to a call with other dimensions");
  }
  if (saved != nullptr) check_plan(*saved, ranks);
  const LayerTrace* trace = saved != nullptr && saved->trace ? &*saved->trace : nullptr;
  LayerExchange* const exchange = ranks.begin(
      layer_terms(call.settings(), tokens, hidden, call.x_dtype(),
                  trace == nullptr ? LayerPass::forward_and_backward : LayerPass::backward));
  LayerTrace recomputed;
  if (trace == nullptr) {
    recomputed =
        layer(call.settings(), profile, call.parameters(), call.input(), {}, exchange).trace;
    trace = &recomputed;
  }
  const LayerGradient gradient =
      reference::layer_backward(call.settings(), profile, call.parameters(), call.input(), *trace,
                                read_values(d_y), {}, read_values(d_logits), exchange);

  write_values(d_x, gradient.d_x);
  write_gradient(views, Parameter::router_weight, gradient.router_weight);
  write_gradient(views, Parameter::router_bias, gradient.router_bias);
  write_gradient(views, Parameter::expert_scale, gradient.expert_scale);
  write_gradient(views, Parameter::gate_up, gradient.gate_up);
  write_gradient(views, Parameter::gate_up_bias, gradient.gate_up_bias);
  write_gradient(views, Parameter::down, gradient.down);
  write_gradient(views, Parameter::down_bias, gradient.down_bias);
  write_gradient(views, Parameter::shared_gate_up, gradient.shared_gate_up);
  write_gradient(views, Parameter::shared_down, gradient.shared_down);
  write_gradient(views, Parameter::shared_gate, gradient.shared_gate);
  if (has_saved) saved_layers().release(forward.saved);
}

}  // namespace

void layer_forward(const dropless_profile& profile, dropless_layer_args* args) {
  const dropless_layer_args a = completed(args, "arguments");
  LayerMeeting ranks(a.exchange);
  ranks.run([&] { forward(profile, a, ranks, args); });
}

void layer_backward(const dropless_profile& profile, dropless_layer_backward_args* args) {
  const dropless_layer_backward_args a = completed(args, "arguments");
  const dropless_layer_args forward = completed(a.forward, "forward");
  LayerMeeting ranks(forward.exchange);
  ranks.run([&] { backward(profile, a, forward, ranks); });
}

void layer_release(const dropless_profile&, dropless_layer_args* args) {
  const dropless_layer_args a = completed(args, "arguments");
  if (a.saved == nullptr) return;
  saved_layers().find(a.saved);
  saved_layers().release(a.saved);
  args->saved = nullptr;
}

void synchronize(const dropless_profile&, dropless_synchronize_args* args) {
  const dropless_synchronize_args a = completed(args, "arguments");
  if (a.exchange != nullptr) seat_of(a.exchange);
}

}  // namespace dropless::reference::contract
