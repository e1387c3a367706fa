// SPDX-License-Identifier: Apache-2.0
// A layer call, checked and read: settings, dimensions, parameters and inputs.
#pragma once

#include <dropless/contract.h>

#include <array>
#include <optional>

#include "reference/contract/tensor.h"
#include "reference/exchange_topology.h"
#include "reference/layer.h"

namespace dropless::reference::contract {

// One entry per member of dropless_layer_parameters, in its order.
enum class Parameter : std::size_t {
  router_weight,
  router_bias,
  expert_bias,
  expert_scale,
  gate_up,
  gate_up_bias,
  down,
  down_bias,
  shared_gate_up,
  shared_down,
  shared_gate
};
inline constexpr std::size_t kParameters = 11;
const char* parameter_name(Parameter p);

struct LayerDimensions {
  Index tokens, hidden, intermediate, shared_intermediate;
  bool operator==(const LayerDimensions&) const = default;
};

class LayerCall {
 public:
  // Throws Refused for whatever does not fit, to the exchange of the call too (null: one rank).
  explicit LayerCall(const dropless_layer_args& a, const ExchangeSettings* exchange);
  LayerCall(const LayerCall&) = delete;
  LayerCall& operator=(const LayerCall&) = delete;

  [[nodiscard]] const dropless_layer_settings& settings() const { return settings_; }
  [[nodiscard]] const dropless_route_settings& route() const { return route_; }
  [[nodiscard]] const LayerDimensions& dimensions() const { return dimensions_; }
  [[nodiscard]] dropless_dtype x_dtype() const { return x_dtype_; }
  [[nodiscard]] LayerParameters parameters() const;
  [[nodiscard]] LayerInput input() const;

  // Gradient tensors of a backward call: those that are wanted, with the shapes of the parameters.
  using Views = std::array<std::optional<TensorView>, kParameters>;
  [[nodiscard]] Views gradient_views(const dropless_layer_parameters* gradients) const;

 private:
  // Views of a whole set; a null pointer gives an empty entry.
  [[nodiscard]] Views views(const dropless_layer_parameters& tensors, const char* what) const;
  [[nodiscard]] Input value(Parameter p) const { return values_[static_cast<std::size_t>(p)]; }

  dropless_route_settings route_{};
  dropless_activation_settings activation_{};
  dropless_layer_settings settings_{};
  LayerDimensions dimensions_{};
  Index local_experts_ = 0;
  dropless_dtype x_dtype_ = DROPLESS_FP32;
  std::array<bool, kParameters> present_{};
  std::array<Doubles, kParameters> values_;
  Doubles x_;
  std::vector<std::uint8_t> mask_;
  std::vector<Index> given_ids_;
};

}  // namespace dropless::reference::contract
