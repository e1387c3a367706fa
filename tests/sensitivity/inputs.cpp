// SPDX-License-Identifier: Apache-2.0
// The inputs of every operation, as the contract lists them.
#include "tests/sensitivity/inputs.h"

#include <dropless/formats/tensor_view.h>

#include <algorithm>
#include <cstring>

#include "tests/faults/tensors.h"

namespace dropless::sensitivity {
namespace {

using Index = std::int64_t;

// Counts above their zone become as large as it.
void counts_of_zones(const dropless_tensor& offsets, const Partners& partners) {
  const TensorView ends(offsets), real(*partners[0]);
  for (Index g = 0; g < real.size() && g + 1 < ends.size(); ++g) {
    const Index zone = ends.load_integer_flat(g + 1) - ends.load_integer_flat(g);
    real.store_integer_flat(std::min(real.load_integer_flat(g), zone), g);
  }
}

// Rows that are no longer in a zone lose their token, new ones are padding.
void plan_of_offsets(const dropless_tensor& offsets, const Partners& partners) {
  const TensorView ends(offsets), row_map(*partners[0]), source(*partners[1]);
  const Index rows = ends.load_integer_flat(ends.size() - 1);
  for (Index p = 0; p < row_map.size(); ++p) {
    if (row_map.load_integer_flat(p) >= rows) row_map.store_integer_flat(-1, p);
  }
  for (Index row = 0; row < std::min(rows, source.size()); ++row) {
    const Index pair = source.load_integer_flat(row);
    const bool mutual =
        pair >= 0 && pair < row_map.size() && row_map.load_integer_flat(pair) == row;
    if (!mutual) source.store_integer_flat(-1, row);
  }
}

void source_of_row_map(const dropless_tensor& row_map, const Partners& partners) {
  const TensorView rows(row_map), source(*partners[0]);
  for (Index p = 0; p < rows.size(); ++p) {
    const Index row = rows.load_integer_flat(p);
    if (row >= 0 && row < source.size()) source.store_integer_flat(p, row);
  }
}

void row_map_of_source(const dropless_tensor& source, const Partners& partners) {
  const TensorView pairs(source), row_map(*partners[0]), ends(*partners[1]);
  const Index rows = std::min(pairs.size(), ends.load_integer_flat(ends.size() - 1));
  for (Index p = 0; p < row_map.size(); ++p) row_map.store_integer_flat(-1, p);
  for (Index row = 0; row < rows; ++row) {
    const Index pair = pairs.load_integer_flat(row);
    if (pair >= 0 && pair < row_map.size()) row_map.store_integer_flat(row, pair);
  }
}

class List {
 public:
  List& tensor(std::string name, const dropless_tensor*& place, Role role = Role::values) {
    if (faults::has_elements(place)) inputs_.push_back({std::move(name), role, &place});
    return *this;
  }
  List& in_place(std::string name, const dropless_tensor*& place, Role role = Role::values) {
    const std::size_t before = inputs_.size();
    tensor(std::move(name), place, role);
    if (inputs_.size() > before) inputs_.back().in_place = true;
    return *this;
  }
  List& zones(const dropless_tensor*& offsets, const dropless_tensor*& counts) {
    tensor("offsets", offsets, Role::offsets).together(&offsets, {&counts}, counts_of_zones);
    return tensor("counts", counts, Role::counts);
  }
  // A plan is three views of one thing; a change of one of them alone is refused.
  List& plan(const dropless_tensor*& offsets, const dropless_tensor*& row_map,
             const dropless_tensor*& source) {
    tensor("offsets", offsets, Role::offsets)
        .together(&offsets, {&row_map, &source}, plan_of_offsets);
    tensor("row_map", row_map, Role::map).together(&row_map, {&source}, source_of_row_map);
    return tensor("source", source, Role::map)
        .together(&source, {&row_map, &offsets}, row_map_of_source);
  }
  List& number(std::string name, double& place) {
    Input input;
    input.name = std::move(name), input.role = Role::number, input.number = &place;
    inputs_.push_back(std::move(input));
    return *this;
  }
  List& operand(const std::string& name, const dropless_operand*& place, dropless_operand& copy) {
    if (!take(place, copy)) return *this;
    return tensor(name, copy.values).tensor(name + ".scales", copy.scales, Role::scales);
  }
  // From here on `place` points to `copy`, which holds as much as its writer declared.
  template <class Struct>
  static bool take(const Struct*& place, Struct& copy) {
    if (place == nullptr) return false;
    std::memcpy(&copy, place, std::min<std::size_t>(place->struct_size, sizeof copy));
    place = &copy;
    return true;
  }
  // What all ranks open a handle with.
  List& group(const dropless_exchange_settings*& place, Loose& loose) {
    if (!take(place, loose.exchange)) return *this;
    tensor("placement", loose.exchange.placement, Role::map);
    tensor("node_of_rank", loose.exchange.node_of_rank, Role::labels);
    for (Input& input : inputs_) input.of_all_ranks = true;
    return *this;
  }
  List& most_tokens(const dropless_exchange_settings*& place, Loose& loose) {
    if (!take(place, loose.exchange)) return *this;
    loose.max_tokens.struct_size = sizeof loose.max_tokens;
    loose.max_tokens.data = &loose.exchange.max_tokens, loose.max_tokens.dtype = DROPLESS_I64;
    loose.max_tokens.rank = 1, loose.max_tokens.shape[0] = loose.max_tokens.strides[0] = 1;
    loose.max_tokens_view = &loose.max_tokens;
    return in_place("max_tokens", loose.max_tokens_view, Role::totals);
  }
  List& route(const dropless_route_settings*& place, dropless_route_settings& copy) {
    return take(place, copy) ? number("scaling_factor", copy.scaling_factor) : *this;
  }
  List& layer(dropless_layer_args& args, dropless_layer_parameters& parameters) {
    tensor("x", args.x).tensor("token_mask", args.token_mask, Role::mask);
    tensor("given_ids", args.given_ids, Role::ids);
    if (!take(args.parameters, parameters)) return *this;
    return tensor("router_weight", parameters.router_weight)
        .tensor("router_bias", parameters.router_bias)
        .tensor("expert_bias", parameters.expert_bias)
        .tensor("expert_scale", parameters.expert_scale)
        .tensor("gate_up", parameters.gate_up)
        .tensor("gate_up_bias", parameters.gate_up_bias)
        .tensor("down", parameters.down)
        .tensor("down_bias", parameters.down_bias)
        .tensor("shared_gate_up", parameters.shared_gate_up)
        .tensor("shared_down", parameters.shared_down)
        .tensor("shared_gate", parameters.shared_gate);
  }
  // What must agree with the input at `place`, if that was taken in.
  List& together(const dropless_tensor** place, std::vector<const dropless_tensor**> partners,
                 void (*agree)(const dropless_tensor&, const Partners&)) {
    if (inputs_.empty() || inputs_.back().tensor != place) return *this;
    for (const dropless_tensor** partner : partners) {
      if (!faults::has_elements(*partner)) return *this;
    }
    inputs_.back().partners = std::move(partners), inputs_.back().agree = agree;
    return *this;
  }
  [[nodiscard]] std::vector<Input> done() { return std::move(inputs_); }

 private:
  std::vector<Input> inputs_;
};

}  // namespace

std::vector<Input> inputs_of(dropless_route_args& a, Loose& loose) {
  return List()
      .tensor("logits", a.logits)
      .tensor("expert_bias", a.expert_bias)
      .tensor("token_mask", a.token_mask, Role::mask)
      .tensor("given_ids", a.given_ids, Role::ids)
      .tensor("expert_scale", a.expert_scale)
      .route(a.settings, loose.route)
      .done();
}

std::vector<Input> inputs_of(dropless_route_backward_args& a, Loose& loose) {
  return List()
      .tensor("logits", a.logits)
      .tensor("token_mask", a.token_mask, Role::mask)
      .tensor("expert_scale", a.expert_scale)
      .tensor("ids", a.ids, Role::ids)
      .tensor("d_weights", a.d_weights)
      .route(a.settings, loose.route)
      .done();
}

std::vector<Input> inputs_of(dropless_balance_loss_args& a, Loose&) {
  const bool forward = a.loss != nullptr;  // the forward call adds to the sums
  List list;
  list.tensor("logits", a.logits)
      .tensor("ids", a.ids, Role::ids)
      .tensor("token_mask", a.token_mask, Role::mask)
      .tensor("sequence_boundaries", a.sequence_boundaries, Role::offsets);
  if (forward) {
    list.in_place("accumulated_counts", a.accumulated_counts, Role::totals)
        .in_place("accumulated_tokens", a.accumulated_tokens, Role::totals);
  } else {
    list.tensor("accumulated_counts", a.accumulated_counts, Role::totals)
        .tensor("accumulated_tokens", a.accumulated_tokens, Role::totals)
        .tensor("d_loss", a.d_loss);
  }
  return list.number("coeff", a.coeff).done();
}

std::vector<Input> inputs_of(dropless_z_loss_args& a, Loose&) {
  List list;
  list.tensor("logits", a.logits).tensor("token_mask", a.token_mask, Role::mask);
  if (a.loss == nullptr) list.tensor("d_loss", a.d_loss);
  return list.number("coeff", a.coeff).done();
}

std::vector<Input> inputs_of(dropless_bias_update_args& a, Loose&) {
  return List()
      .tensor("counts", a.counts, Role::totals)
      .in_place("expert_bias", a.expert_bias)
      .number("rate", a.rate)
      .done();
}

std::vector<Input> inputs_of(dropless_permute_plan_args& a, Loose&) {
  return List().tensor("ids", a.ids, Role::ids).done();
}

std::vector<Input> inputs_of(dropless_permute_args& a, Loose&) {
  return List()
      .plan(a.offsets, a.row_map, a.source)
      .tensor("x", a.x)
      .tensor("weights", a.weights)
      .tensor("scales", a.scales, Role::scales)
      .done();
}

std::vector<Input> inputs_of(dropless_permute_backward_args& a, Loose&) {
  return List()
      .tensor("row_map", a.row_map, Role::map)
      .tensor("d_rows", a.d_rows)
      .tensor("d_row_weights", a.d_row_weights)
      .done();
}

std::vector<Input> inputs_of(dropless_unpermute_args& a, Loose&) {
  return List()
      .tensor("row_map", a.row_map, Role::map)
      .tensor("rows", a.rows)
      .tensor("weights", a.weights)
      .done();
}

std::vector<Input> inputs_of(dropless_unpermute_backward_args& a, Loose&) {
  return List()
      .plan(a.offsets, a.row_map, a.source)
      .tensor("rows", a.rows)
      .tensor("weights", a.weights)
      .tensor("d_y", a.d_y)
      .done();
}

std::vector<Input> inputs_of(dropless_quantize_args& a, Loose&) {
  return List().tensor("x", a.x).zones(a.offsets, a.counts).done();
}

std::vector<Input> inputs_of(dropless_dequantize_args& a, Loose&) {
  return List()
      .tensor("codes", a.codes)
      .tensor("scales", a.scales, Role::scales)
      .zones(a.offsets, a.counts)
      .done();
}

std::vector<Input> inputs_of(dropless_gemm_fprop_args& a, Loose& loose) {
  return List()
      .operand("x", a.x, loose.left)
      .operand("w", a.w, loose.right)
      .tensor("bias", a.bias)
      .zones(a.offsets, a.counts)
      .number("alpha", a.alpha)
      .done();
}

std::vector<Input> inputs_of(dropless_gemm_dgrad_args& a, Loose& loose) {
  return List()
      .operand("dy", a.dy, loose.left)
      .operand("w", a.w, loose.right)
      .zones(a.offsets, a.counts)
      .number("alpha", a.alpha)
      .done();
}

std::vector<Input> inputs_of(dropless_gemm_wgrad_args& a, Loose& loose) {
  List list;
  list.operand("dy", a.dy, loose.left)
      .operand("x", a.x, loose.right)
      .zones(a.offsets, a.counts)
      .number("alpha", a.alpha);
  if (a.beta != 0) list.number("beta", a.beta);
  if (a.c != nullptr && a.dw != nullptr && a.c->data == a.dw->data) {
    list.in_place("c", a.c);
  } else {
    list.tensor("c", a.c);
  }
  return list.done();
}

std::vector<Input> inputs_of(dropless_activation_args& a, Loose&) {
  return List()
      .tensor("x", a.x)
      .tensor("row_weights", a.row_weights)
      .zones(a.offsets, a.counts)
      .done();
}

std::vector<Input> inputs_of(dropless_activation_backward_args& a, Loose&) {
  return List()
      .tensor("x", a.x)
      .tensor("row_weights", a.row_weights)
      .zones(a.offsets, a.counts)
      .tensor("dh", a.dh)
      .done();
}

std::vector<Input> inputs_of(dropless_cross_entropy_args& a, Loose&) {
  List list;
  list.tensor("logits", a.logits).tensor("labels", a.labels, Role::labels);
  if (a.loss == nullptr) list.tensor("d_loss", a.d_loss);
  return list.done();
}

std::vector<Input> inputs_of(dropless_adamw_args& a, Loose&) {
  List list;
  list.tensor("gradient", a.gradient)
      .in_place("first_moment", a.first_moment)
      .in_place("second_moment", a.second_moment)
      .in_place("master", a.master);
  if (a.master == nullptr) list.in_place("weight", a.weight);
  list.tensor("gradient_scale_tensor", a.gradient_scale_tensor);
  if (a.gradient_scale_tensor == nullptr) list.number("gradient_scale", a.gradient_scale);
  return list.number("learning_rate", a.learning_rate)
      .number("beta1", a.beta1)
      .number("beta2", a.beta2)
      .number("eps", a.eps)
      .number("weight_decay", a.weight_decay)
      .done();
}

std::vector<Input> inputs_of(dropless_layer_args& a, Loose& loose) {
  return List().layer(a, loose.parameters).done();
}

std::vector<Input> inputs_of(dropless_layer_backward_args& a, Loose& loose) {
  List list;
  if (List::take(a.forward, loose.forward)) list.layer(loose.forward, loose.parameters);
  return list.tensor("d_y", a.d_y).tensor("d_logits", a.d_logits).done();
}

std::vector<Input> inputs_of(dropless_exchange_open_args& a, Loose& loose) {
  return List().group(a.settings, loose).done();
}

std::vector<Input> inputs_of(dropless_exchange_capacity_args& a, Loose& loose) {
  return List().most_tokens(a.settings, loose).done();
}

std::vector<Input> inputs_of(dropless_exchange_plan_args& a, Loose&) {
  return List().tensor("ids", a.ids, Role::ids).done();
}

std::vector<Input> inputs_of(dropless_exchange_dispatch_args& a, Loose&) {
  return List()
      .tensor("x", a.x)
      .tensor("scales", a.scales, Role::scales)
      .tensor("weights", a.weights)
      .done();
}

std::vector<Input> inputs_of(dropless_exchange_combine_args& a, Loose&) {
  return List().tensor("rows", a.rows).tensor("row_weights", a.row_weights).done();
}

std::vector<Input> inputs_of(dropless_exchange_dispatch_backward_args& a, Loose&) {
  return List().tensor("d_rows", a.d_rows).tensor("d_row_weights", a.d_row_weights).done();
}

std::vector<Input> inputs_of(dropless_exchange_combine_backward_args& a, Loose&) {
  return List()
      .tensor("d_y", a.d_y)
      .tensor("rows", a.rows)
      .tensor("row_weights", a.row_weights)
      .done();
}

}  // namespace dropless::sensitivity
