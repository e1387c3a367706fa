// SPDX-License-Identifier: Apache-2.0
// Faults of a layer over ranks. Ranks are threads of one process, and what one of them has to know
// of the others it gathers through the callback of its handle.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>

#include "reference/mxfp8.h"
#include "tests/faults/layers.h"

namespace dropless::faults {
namespace {

using Gradients = dropless_layer_parameters;

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// The rank of a handle.
struct Place {
  Index rank = 0, ranks = 1;
  Index row_bytes = 0;
  dropless_all_gather gather = nullptr;
  void* context = nullptr;

  // The sum over ranks, element by element; a rank that has left leaves the tensor as it is.
  void sum(const dropless_tensor* tensor) const {
    if (gather == nullptr || !is_readable(tensor)) return;
    const bool counts = tensor->dtype == DROPLESS_I64;
    std::vector<double> mine;
    if (counts) {
      for (const Index count : integers_of(tensor)) mine.push_back(static_cast<double>(count));
    } else {
      mine = values_of(tensor);
    }
    std::vector<double> all(mine.size() * at(ranks));
    if (gather(context, mine.data(), all.data(), mine.size() * sizeof(double)) != 0) return;
    const auto total = [&](Index i) {
      double sum_of_ranks = 0;
      for (Index r = 0; r < ranks; ++r) sum_of_ranks += all[at(r) * mine.size() + at(i)];
      return sum_of_ranks;
    };
    if (counts) each_integer(tensor, [&](Index, Index i) { return static_cast<Index>(total(i)); });
    if (!counts) each(tensor, [&](double, Index i) { return total(i); });
  }
};

// Where the handles of a planted table were opened.
class Places {
 public:
  explicit Places(Planted& planted) {
    planted.around<&Table::exchange_open>(
        [known = known_](const auto& next, dropless_exchange_open_args& a) {
          const dropless_status status = next(a);
          if (status != DROPLESS_OK || a.settings == nullptr) return status;
          const std::lock_guard lock(known->mutex);
          known->places[a.exchange] = {a.settings->rank, a.settings->ranks, a.settings->row_bytes,
                                       a.settings->all_gather, a.settings->all_gather_context};
          return status;
        });
  }
  // Of a call without an exchange: one rank.
  [[nodiscard]] Place of(const dropless_exchange* exchange) const {
    const std::lock_guard lock(known_->mutex);
    const auto found = known_->places.find(exchange);
    return found == known_->places.end() ? Place{} : found->second;
  }

 private:
  struct Known {
    std::mutex mutex;
    std::map<const dropless_exchange*, Place> places;
  };
  std::shared_ptr<Known> known_ = std::make_shared<Known>();
};

// Copies of the gradients of the experts, in one place.
struct ExpertTensors {
  const dropless_tensor* all[4];
  explicit ExpertTensors(const Gradients& g)
      : all{g.gate_up, g.gate_up_bias, g.down, g.down_bias} {}
};

// The fault with the place of each call's rank; calls without an exchange are left alone.
using RankBackward = void (*)(const Place&, Backward&, const Gradients&);
void after_rank_backward(Planted& planted, RankBackward change) {
  const Places places(planted);
  after_backward(planted, [places, change](Backward& a, const Gradients& gradients) {
    const Place place = places.of(a.forward->exchange);
    if (place.ranks > 1) change(place, a, gradients);
  });
}

bool is_over_ranks(const Forward* forward) {
  return forward != nullptr && forward->struct_size >= sizeof(Forward) &&
         forward->exchange != nullptr;
}

// A second backward pass of the same step, collective like the first: with another cotangent or
// another input, without saved state. Its gradients go into copies.
class SecondBackward {
 public:
  explicit SecondBackward(const Backward& a)
      : args_(a),
        forward_(*a.forward),
        gradients_(*a.gradients),
        d_x_(a.d_x),
        gate_up_(gradients_.gate_up),
        bias_(gradients_.gate_up_bias) {
    forward_.saved = nullptr, forward_.keep = 0;
    const Gradients wanted = gradients_;
    gradients_ = {};
    gradients_.struct_size = sizeof gradients_;
    gradients_.struct_version = wanted.struct_version;
    gradients_.gate_up = gate_up_.tensor(), gradients_.gate_up_bias = bias_.tensor();
    args_.forward = &forward_, args_.gradients = &gradients_, args_.d_x = d_x_.tensor();
  }
  Backward& args() { return args_; }
  Forward& forward() { return forward_; }
  [[nodiscard]] const Copy& gate_up() const { return gate_up_; }
  [[nodiscard]] const Copy& bias() const { return bias_; }
  [[nodiscard]] const Copy& d_x() const { return d_x_; }

 private:
  Backward args_;
  Forward forward_;
  Gradients gradients_;
  Copy d_x_, gate_up_, bias_;
};

bool is_complete(const Backward& a) {
  return is_over_ranks(a.forward) && a.gradients != nullptr &&
         a.gradients->struct_size >= sizeof(Gradients) && is_readable(a.d_y) &&
         is_readable(a.gradients->gate_up);
}

void add_gradients(std::vector<Fault>& faults) {
  faults.push_back(
      {.name = "layer.over_ranks_expert_gradients_averaged",
       .provenance = "pytorch 160285; Megatron-LM 7165",
       .symptom = "gradients of experts are divided by the number of ranks",
       .trigger = "more than one rank",
       .clauses = {"LAYER-4b", "LAYER-4e"},
       .plant = [](Planted& planted) {
         after_rank_backward(planted, [](const Place& place, Backward&, const Gradients& g) {
           for (const dropless_tensor* tensor : ExpertTensors(g).all) {
             each(tensor, [&](double d, Index) { return d / static_cast<double>(place.ranks); });
           }
         });
       }});
  faults.push_back({.name = "layer.over_ranks_router_gradient_reduced",
                    .provenance = "torchtitan 2416, 4054, the reverse",
                    .symptom = "the layer sums the router's gradient, and so does its caller",
                    .trigger = "more than one rank",
                    .clauses = {"LAYER-4c"},
                    .plant = [](Planted& planted) {
                      after_rank_backward(planted,
                                          [](const Place& place, Backward&, const Gradients& g) {
                                            place.sum(g.router_weight);
                                          });
                    }});
  faults.push_back({.name = "layer.over_ranks_bias_gradient_of_own_tokens",
                    .provenance = "torchtitan 2387; cuBLAS 12.3U1 [4910924]",
                    .symptom = "the bias of an expert learns from the tokens of its own rank alone",
                    .trigger = "a model with biases",
                    .clauses = {"LAYER-4b"},
                    .plant = [](Planted& planted) {
                      const Places places(planted);
                      planted.around<&Table::layer_backward>(
                          [places](const auto& next, Backward& a) {
                            const dropless_status status = next(a);
                            if (status != DROPLESS_OK || !is_complete(a)) return status;
                            if (a.gradients->gate_up_bias == nullptr) return status;
                            const Place place = places.of(a.forward->exchange);
                            const Copy zero(a.d_y);
                            each(zero.tensor(), [](double, Index) { return 0.0; });
                            for (Index own = 0; own < place.ranks; ++own) {
                              SecondBackward second(a);
                              if (own != place.rank) second.args().d_y = zero.tensor();
                              if (next(second.args()) != DROPLESS_OK) return status;
                              if (own == place.rank) second.bias().write_back();
                            }
                            return status;
                          });
                    }});
  faults.push_back({.name = "layer.over_ranks_input_gradient_of_own_experts",
                    .provenance = "Automodel 1260; transformers 48205, part 2",
                    .symptom = "the gradient of the input lacks what comes back from other ranks",
                    .trigger = "tokens with experts on other ranks",
                    .clauses = {"EXCHANGE-13", "LAYER-4a"},
                    .plant = [](Planted& planted) {
                      const Places places(planted);
                      planted.around<&Table::layer_backward>(
                          [places](const auto& next, Backward& a) {
                            const dropless_status status = next(a);
                            LayerParts parts;
                            if (status != DROPLESS_OK || !is_complete(a) || !parts.take(*a.forward))
                              return status;
                            const Place place = places.of(a.forward->exchange);
                            const Copy zero(parts.parameters.down);
                            if (!zero.readable() || !is_readable(a.d_x)) return status;
                            each(zero.tensor(), [](double, Index) { return 0.0; });
                            for (Index own = 0; own < place.ranks; ++own) {
                              SecondBackward second(a);
                              second.forward().given_ids = a.forward->ids;
                              LayerParts without = parts;
                              if (own != place.rank) without.parameters.down = zero.tensor();
                              without.put_into(second.forward());
                              if (next(second.args()) != DROPLESS_OK) return status;
                              if (own == place.rank) second.d_x().write_back();
                            }
                            return status;
                          });
                    }});
  faults.push_back(
      {.name = "layer.over_ranks_without_tokens_returns_early",
       .provenance = "Automodel 2995, part 3; uccl 898",
       .symptom = "a rank without tokens leaves the gradients of its experts unwritten",
       .trigger = "a rank without tokens",
       .clauses = {"LAYER-4b", "LAYER-4f"},
       .plant = [](Planted& planted) {
         planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
           if (!is_complete(a) || view(a.d_y).size() > 0) return next(a);
           const Copy gate_up(a.gradients->gate_up), down(a.gradients->down);
           const dropless_status status = next(a);
           gate_up.write_back();
           if (down.readable()) down.write_back();
           return status;
         });
       }});
}

void add_outputs(std::vector<Fault>& faults) {
  faults.push_back({.name = "layer.over_ranks_scale_by_local_id",
                    .provenance = "vllm-ascend 4793, 5311",
                    .symptom = "the scale of an expert is looked up by its number on its rank",
                    .trigger = "a scale per expert",
                    .clauses = {"EXCHANGE-13", "LAYER-4a"},
                    .plant = [](Planted& planted) {
                      const Places places(planted);
                      planted.around<&Table::layer_forward>([places](const auto& next, Forward& a) {
                        LayerParts parts;
                        const Place place = places.of(a.exchange);
                        if (place.ranks == 1 || !parts.take(a)) return next(a);
                        const Copy scale(parts.parameters.expert_scale);
                        if (!scale.readable()) return next(a);
                        const std::vector<double> given = values_of(parts.parameters.expert_scale);
                        const auto local = given.size() / at(place.ranks);
                        each(scale.tensor(), [&](double, Index e) { return given[at(e) % local]; });
                        parts.parameters.expert_scale = scale.tensor();
                        parts.put_into(a);
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "layer.over_ranks_shared_expert_on_every_rank",
                    .provenance = "sglang 32962, of a shared expert",
                    .symptom = "the shared expert is dispatched like the others and added twice",
                    .trigger = "a shared expert",
                    .clauses = {"EXCHANGE-13", "LAYER-4a"},
                    .plant = [](Planted& planted) {
                      const Places places(planted);
                      planted.around<&Table::layer_forward>([places](const auto& next, Forward& a) {
                        LayerParts parts;
                        if (places.of(a.exchange).ranks == 1 || !parts.take(a)) return next(a);
                        const Copy down(parts.parameters.shared_down);
                        if (!down.readable()) return next(a);
                        each(down.tensor(), [](double w, Index) { return 2 * w; });
                        parts.parameters.shared_down = down.tensor();
                        parts.put_into(a);
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "layer.over_ranks_counts_of_the_group",
                    .provenance = "sglang 29055",
                    .symptom = "tokens_per_expert counts the tokens of all ranks",
                    .trigger = "more than one rank",
                    .clauses = {"LAYER-1a"},
                    .plant = [](Planted& planted) {
                      const Places places(planted);
                      after_forward(planted, [places](Forward& a, const LayerParts&) {
                        places.of(a.exchange).sum(a.tokens_per_expert);
                      });
                    }});
  faults.push_back({.name = "layer.over_ranks_rows_in_bf16",
                    .provenance = "Megatron-LM 1421",
                    .symptom = "rows of an fp32 layer are cast to bf16 for transport",
                    .trigger = "fp32 layers of a system that rounds once per rank",
                    .clauses = {"LAYER-4d"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) {
                        p.combine_rounding = DROPLESS_COMBINE_ROUNDS_PER_RANK;
                      });
                      after_forward(planted, [](Forward& a, const LayerParts&) {
                        if (a.exchange == nullptr || a.y->dtype != DROPLESS_FP32) return;
                        each(a.y, [](double y, Index) { return bf16(y); });
                      });
                    }});
  faults.push_back({.name = "layer.over_ranks_long_rows_accepted",
                    .provenance = "rocm-systems 8228; DeepEP 723",
                    .symptom = "rows longer than those of the handle are cut",
                    .trigger = "a handle for shorter rows",
                    .clauses = {"LAYER-4g"},
                    .plant = [](Planted& planted) {
                      const Places places(planted);
                      planted.around<&Table::layer_forward>([places](const auto& next, Forward& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_INVALID_ARGUMENT || a.exchange == nullptr) {
                          return status;
                        }
                        const bool cut = is_readable(a.x) && a.x->dtype == DROPLESS_BF16 &&
                                         2 * view(a.x).shape(1) > places.of(a.exchange).row_bytes;
                        return cut ? DROPLESS_OK : status;
                      });
                    }});
}

// x as row-wise codes hold it.
void requantise(const dropless_tensor* x, const dropless_profile& profile) {
  const TensorView rows = view(x);
  const std::vector<double> values = values_of(x);
  reference::QuantizeSettings settings;
  settings.row_format = settings.column_format = DROPLESS_E4M3;
  const auto q = reference::quantize(settings, profile, rows.shape(0), rows.shape(1), values, {});
  const auto back =
      reference::dequantize(DROPLESS_BLOCKS_ROW_WISE, settings.scale_layout, DROPLESS_E4M3,
                            rows.shape(0), rows.shape(1), q.row_codes, q.row_scales, {});
  each(x, [&](double, Index i) { return back[at(i)]; });
}

void add_codes(std::vector<Fault>& faults) {
  faults.push_back(
      {.name = "layer.over_ranks_scales_of_the_next_row",
       .provenance = "Transformer Engine 3447",
       .symptom = "codes are read with the scales of another row",
       .trigger = "the MXFP8 recipe and rows of different size",
       .clauses = {"EXCHANGE-13", "LAYER-4e"},
       .plant = [](Planted& planted) {
         planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
           LayerParts parts;
           const bool codes = a.exchange != nullptr && parts.take(a) &&
                              parts.settings.recipe == DROPLESS_RECIPE_MXFP8;
           const Copy x(a.x);
           if (!codes || !x.readable() || view(a.x).rank() != 2) return next(a);
           const Index columns = view(a.x).shape(1), tokens = view(a.x).shape(0);
           const std::vector<double> given = values_of(a.x);
           const auto exponent = [&](Index token, Index h) {
             double amax = 0;
             const Index first = token * columns + h / 32 * 32;
             for (Index i = first; i < std::min(first + 32, (token + 1) * columns); ++i)
               amax = std::max(amax, std::abs(given[at(i)]));
             return amax == 0 ? 0 : std::ilogb(amax);
           };
           each(x.tensor(), [&](double v, Index i) {
             const Index token = i / columns, h = i % columns;
             return std::ldexp(v, exponent((token + 1) % tokens, h) - exponent(token, h));
           });
           Forward changed = a;
           changed.x = x.tensor();
           const dropless_status status = next(changed);
           a.saved = changed.saved;
           return status;
         });
       }});
  faults.push_back({.name = "layer.over_ranks_codes_quantised_again",
                    .provenance = "numerics: column-wise codes made from row-wise ones",
                    .symptom = "weight gradients are made of what the received codes stand for",
                    .trigger = "the MXFP8 recipe with codes on the wire",
                    .clauses = {"LAYER-4e"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
                        const dropless_status status = next(a);
                        LayerParts parts;
                        if (status != DROPLESS_OK || !is_complete(a) || !parts.take(*a.forward) ||
                            parts.settings.recipe != DROPLESS_RECIPE_MXFP8) {
                          return status;
                        }
                        const Copy x(a.forward->x);
                        if (!x.readable()) return status;
                        requantise(x.tensor(), *next.table().profile);
                        SecondBackward second(a);
                        second.forward().x = x.tensor();
                        second.forward().given_ids = a.forward->ids;
                        if (next(second.args()) == DROPLESS_OK) second.gate_up().write_back();
                        return status;
                      });
                    }});
}

void add_state(std::vector<Fault>& faults) {
  faults.push_back({.name = "layer.over_ranks_recompute_routes_anew",
                    .provenance = "Megatron-LM 3437; Transformer Engine 3440",
                    .symptom = "the recomputed forward pass sends tokens to other experts",
                    .trigger = "recompute over ranks",
                    .clauses = {"LAYER-3a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
                        LayerParts parts;
                        if (!is_over_ranks(a.forward) || !parts.take(*a.forward) ||
                            parts.settings.recompute == 0) {
                          return next(a);
                        }
                        const Copy ids(a.forward->ids);
                        each_integer(ids.tensor(), [&](Index id, Index) {
                          return id < 0 ? id : (id + 1) % parts.route.num_experts;
                        });
                        Forward forward = *a.forward;
                        forward.given_ids = ids.tensor();
                        a.forward = &forward;
                        return next(a);
                      });
                    }});
  faults.push_back(
      {.name = "layer.over_ranks_plan_of_the_last_forward",
       .provenance = "mori 80; prime-rl 3411",
       .symptom = "a backward pass uses the routing of the forward pass that came last",
       .trigger = "two layers in flight",
       .clauses = {"LAYER-4f"},
       .plant = [](Planted& planted) {
         static thread_local std::vector<Index> last;
         static thread_local const void* last_exchange = nullptr;
         after_forward(planted, [](Forward& a, const LayerParts&) {
           if (a.exchange == nullptr || !is_readable(a.ids)) return;
           last = integers_of(a.ids), last_exchange = a.exchange;
         });
         planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
           if (!is_over_ranks(a.forward) || last_exchange == a.forward->exchange) return next(a);
           // All ranks leave the saved state, since they make the forward pass again together.
           const Copy ids(a.forward->ids);
           each_integer(ids.tensor(),
                        [&](Index id, Index i) { return at(i) < last.size() ? last[at(i)] : id; });
           Forward forward = *a.forward;
           forward.given_ids = ids.tensor(), forward.saved = nullptr, forward.keep = 0;
           a.forward = &forward;
           return next(a);
         });
       }});
  faults.push_back(
      {.name = "layer.over_ranks_rows_of_a_larger_step",
       .provenance = "DeepEP 739; TRT-LLM 6141",
       .symptom = "rows that a larger step left behind count in a smaller one",
       .trigger = "a step with fewer tokens on one handle",
       .clauses = {"LAYER-4f"},
       .plant = [](Planted& planted) {
         struct Step {
           const void* exchange = nullptr;
           Index tokens = 0;
           std::vector<double> down;
         };
         static thread_local Step before;
         after_backward(planted, [](Backward& a, const Gradients& g) {
           if (!is_over_ranks(a.forward) || !is_readable(g.down)) return;
           const Step now{a.forward->exchange, view(a.d_y).shape(0), values_of(g.down)};
           const bool smaller = before.exchange == now.exchange && now.tokens < before.tokens &&
                                before.down.size() == now.down.size();
           if (smaller) each(g.down, [&](double d, Index i) { return d + before.down[at(i)]; });
           before = now;
         });
       }});
}

}  // namespace

void add_layer_over_ranks(std::vector<Fault>& faults) {
  add_gradients(faults);
  add_outputs(faults);
  add_codes(faults);
  add_state(faults);
}

}  // namespace dropless::faults
