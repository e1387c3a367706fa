// SPDX-License-Identifier: Apache-2.0
// Faults of AdamW.
#include "reference/optimizer.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/faults/planted.h"
#include "tests/faults/refusals.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {
namespace {

using Adamw = dropless_adamw_args;
using Element = reference::AdamwElement;

// What one element's step is made from.
struct Step {
  reference::AdamwSettings settings;
  double gradient, first_moment, second_moment, weight;
};
using StepChange = std::function<void(Step&)>;
using ResultChange = std::function<void(Element&, const Step&)>;

bool is_stochastic(const Adamw& a) {
  return a.weight_rounding == DROPLESS_ROUND_STOCHASTIC && a.weight->dtype == DROPLESS_BF16;
}

// The step from other inputs, or with another result; stochastic weights are left as they are.
void change_step(Planted& planted, StepChange before, ResultChange after = {}) {
  planted.around<&Table::adamw>([before, after](const auto& next, Adamw& a) {
    const std::vector<double> gradient = values_of(a.gradient), first = values_of(a.first_moment),
                              second = values_of(a.second_moment),
                              weight = values_of(a.master != nullptr ? a.master : a.weight);
    const dropless_status status = next(a);
    if (status != DROPLESS_OK) return status;
    const double scale = a.gradient_scale_tensor != nullptr ? view(a.gradient_scale_tensor).load(0)
                                                            : a.gradient_scale;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      Step step{{a.learning_rate, a.beta1, a.beta2, a.eps, a.weight_decay, scale, a.step},
                gradient[i],
                first[i],
                second[i],
                weight[i]};
      before(step);
      Element result = reference::adamw(step.settings, step.gradient, step.first_moment,
                                        step.second_moment, step.weight);
      if (after) after(result, step);
      const auto at = static_cast<Index>(i);
      view(a.first_moment).store(result.first_moment, at);
      view(a.second_moment).store(result.second_moment, at);
      double p = result.weight;
      if (a.master != nullptr) {
        view(a.master).store(p, at);
        p = view(a.master).load(at);
      }
      if (!is_stochastic(a)) view(a.weight).store(p, at);
    }
    return status;
  });
}

// The right step, with another result.
void change_result(Planted& planted, ResultChange change) {
  change_step(
      planted, [](Step&) {}, std::move(change));
}

double bf16_truncated(double value) {
  const auto bits = encode_bits(DROPLESS_FP32, value) & 0xFFFF0000u;
  return decode_bits(DROPLESS_FP32, bits);
}

void add_formula(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  add("optimizer.decay_in_the_gradient",
      "operator O17: the neighbouring mode (L2 for decoupled decay)",
      "weight decay passes through the moments", "weight decay", {"OPTIMIZER-1c", "OPTIMIZER-1a"},
      [](Planted& planted) {
        change_step(planted, [](Step& s) {
          s.gradient += s.settings.weight_decay * s.weight;
          s.settings.weight_decay = 0;
        });
      });
  add("optimizer.bias_correction_missing", "operator O9: factor never applied",
      "the first steps are too small", "early steps", {"OPTIMIZER-1c"},
      [](Planted& planted) { change_step(planted, [](Step& s) { s.settings.step = 1 << 20; }); });
  add("optimizer.step_off_by_one", "operator O20: off by one (the counter starts at 0)",
      "bias correction of the step after", "early steps", {"OPTIMIZER-1c"},
      [](Planted& planted) { change_step(planted, [](Step& s) { ++s.settings.step; }); });
  add("optimizer.eps_inside_the_root", "operator O17: the neighbouring mode",
      "updates are too small", "small second moments", {"OPTIMIZER-1c"}, [](Planted& planted) {
        change_result(planted, [](Element& e, const Step& s) {
          const auto t = static_cast<double>(s.settings.step);
          const double c1 = 1 - std::pow(s.settings.beta1, t);
          const double c2 = 1 - std::pow(s.settings.beta2, t);
          const double u = e.first_moment / c1 /
                           std::sqrt(e.second_moment / c2 + s.settings.eps * s.settings.eps);
          e.weight = s.weight - s.settings.learning_rate * (u + s.settings.weight_decay * s.weight);
        });
      });
  add("optimizer.eps_before_the_correction", "operator O17: swapped order of two steps",
      "eps is divided by the bias correction", "early steps", {"OPTIMIZER-1c"},
      [](Planted& planted) {
        change_step(planted, [](Step& s) {
          const auto t = static_cast<double>(s.settings.step);
          s.settings.eps /= std::sqrt(1 - std::pow(s.settings.beta2, t));
        });
      });
  add("optimizer.decay_of_the_new_weight", "operator O10: value of the wrong twin",
      "decay is taken from the updated weight", "weight decay", {"OPTIMIZER-1c"},
      [](Planted& planted) {
        change_result(planted, [](Element& e, const Step& s) {
          const double decay = s.settings.learning_rate * s.settings.weight_decay;
          const double updated = e.weight + decay * s.weight;
          e.weight = updated - decay * updated;
        });
      });
  add("optimizer.decay_without_learning_rate", "operator O9: factor never applied",
      "weights vanish", "weight decay", {"OPTIMIZER-1c"}, [](Planted& planted) {
        change_step(planted, [](Step& s) {
          if (s.settings.learning_rate != 0) s.settings.weight_decay /= s.settings.learning_rate;
        });
      });
  add("optimizer.betas_swapped", "operator O3: swapped arguments (DeepSpeed 7551)",
      "both moments forget at the wrong rate", "different betas",
      {"OPTIMIZER-1a", "OPTIMIZER-1b", "OPTIMIZER-1c"}, [](Planted& planted) {
        change_step(planted, [](Step& s) { std::swap(s.settings.beta1, s.settings.beta2); });
      });
  add("optimizer.second_moment_of_the_moment", "operator O10: value of the wrong twin",
      "the second moment is fed with the first", "always", {"OPTIMIZER-1b", "OPTIMIZER-1j"},
      [](Planted& planted) {
        change_result(planted, [](Element& e, const Step& s) {
          e.second_moment = s.settings.beta2 * s.second_moment +
                            (1 - s.settings.beta2) * e.first_moment * e.first_moment;
        });
      });
  add("optimizer.idle_elements_skipped", "Automodel 2995, part 3",
      "elements without gradient skip momentum and decay", "a gradient of 0",
      {"OPTIMIZER-1c", "OPTIMIZER-1a", "OPTIMIZER-1b"}, [](Planted& planted) {
        change_result(planted, [](Element& e, const Step& s) {
          if (s.gradient != 0) return;
          e = {s.first_moment, s.second_moment, 0, s.weight};
        });
      });
  add("optimizer.moments_in_bf16", "operator O15: low accumulation (Megatron-LM 7081)",
      "fp32 moments are rounded to bf16", "always",
      {"OPTIMIZER-1b", "OPTIMIZER-1a", "OPTIMIZER-1j"}, [](Planted& planted) {
        change_result(planted,
                      [](Element& e, const Step&) { e.second_moment = bf16(e.second_moment); });
      });
}

void add_scale(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* provenance, const char* symptom,
                       std::vector<std::string> clauses, void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = "a gradient scale other than 1",
                      .clauses = std::move(clauses),
                      .plant = plant});
  };
  add("optimizer.gradient_scale_ignored", "Megatron-LM 5916: clipping without effect",
      "gradients are not clipped", {"OPTIMIZER-1j", "OPTIMIZER-1a", "OPTIMIZER-1b"},
      [](Planted& planted) {
        change_step(planted, [](Step& s) { s.settings.gradient_scale = 1; });
      });
  add("optimizer.scale_missing_in_the_second_moment", "operator O9: factor never applied",
      "only the first moment is clipped", {"OPTIMIZER-1j", "OPTIMIZER-1b"}, [](Planted& planted) {
        change_result(planted, [](Element& e, const Step& s) {
          e.second_moment =
              s.settings.beta2 * s.second_moment + (1 - s.settings.beta2) * s.gradient * s.gradient;
        });
      });
  add("optimizer.scale_not_squared", "operator O9: factor never applied",
      "the second moment has the scale once", {"OPTIMIZER-1j", "OPTIMIZER-1b"},
      [](Planted& planted) {
        change_result(planted, [](Element& e, const Step& s) {
          e.second_moment = s.settings.beta2 * s.second_moment + (1 - s.settings.beta2) *
                                                                     s.settings.gradient_scale *
                                                                     s.gradient * s.gradient;
        });
      });
  add("optimizer.scale_tensor_ignored", "flashinfer 2889: a setting that never arrives",
      "the scale on the device has no effect", {"OPTIMIZER-1j"}, [](Planted& planted) {
        planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
          if (is_readable(a.gradient_scale_tensor)) a.gradient_scale_tensor = nullptr;
          return next(a);
        });
      });
  add("optimizer.both_scales_applied", "operator O9: factor twice (vllm 24119)",
      "the scale tensor multiplies the scalar instead of replacing it", {"OPTIMIZER-1j"},
      [](Planted& planted) {
        planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
          const Copy scale(a.gradient_scale_tensor);
          if (scale.readable()) {
            each(scale.tensor(), [&](double s, Index) { return s * a.gradient_scale; });
          }
          a.gradient_scale_tensor = scale.tensor();
          return next(a);
        });
      });
  add("optimizer.gradient_scaled_in_place",
      "operator O21: an input is used as scratch (vllm 28939)", "the gradient is changed",
      {"GENERAL-0", "OPTIMIZER-1j"}, [](Planted& planted) {
        planted.after<&Table::adamw>(
            [](Adamw& a) { each(a.gradient, [](double g, Index) { return g * 0.5; }); });
      });
}

void add_formats(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  add("optimizer.bf16_weight_truncated", "numerics: output truncated, not RNE",
      "weights drift towards zero", "bf16 weights", {"OPTIMIZER-1d", "OPTIMIZER-1e"},
      [](Planted& planted) {
        planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
          const bool wide = !is_readable(a.weight) || a.weight->dtype != DROPLESS_BF16;
          if (wide || a.weight_rounding != DROPLESS_ROUND_NEAREST_EVEN) return next(a);
          const Copy weight(a.weight, DROPLESS_FP32);
          Adamw exact = a;
          exact.weight = weight.tensor();
          const dropless_status status = next(exact);
          if (status != DROPLESS_OK) return status;
          each(a.weight,
               [&](double, Index i) { return bf16_truncated(weight.elements().load_flat(i)); });
          return status;
        });
      });
  add("optimizer.update_from_the_rounded_moment", "operator O10: value of the wrong twin",
      "the update is made from the moment that was stored", "a bf16 first moment",
      {"OPTIMIZER-1f", "OPTIMIZER-1c"}, [](Planted& planted) {
        planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
          const bool narrow = is_readable(a.first_moment) &&
                              a.first_moment->dtype == DROPLESS_BF16 && is_readable(a.weight);
          if (!narrow || is_stochastic(a)) return next(a);
          const std::vector<double> weight = values_of(a.master != nullptr ? a.master : a.weight);
          const dropless_status status = next(a);
          if (status != DROPLESS_OK) return status;
          const auto t = static_cast<double>(a.step);
          const double c1 = 1 - std::pow(a.beta1, t), c2 = 1 - std::pow(a.beta2, t);
          for (std::size_t i = 0; i < weight.size(); ++i) {
            const auto at = static_cast<Index>(i);
            const double u = view(a.first_moment).load(at) / c1 /
                             (std::sqrt(view(a.second_moment).load(at) / c2) + a.eps);
            const double p = weight[i] - a.learning_rate * (u + a.weight_decay * weight[i]);
            if (a.master != nullptr) view(a.master).store(p, at);
            view(a.weight).store(p, at);
          }
          return status;
        });
      });
  add("optimizer.bf16_moment_truncated", "numerics: output truncated, not RNE",
      "the first moment drifts towards zero", "a bf16 first moment", {"OPTIMIZER-1f"},
      [](Planted& planted) {
        planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
          if (!is_readable(a.first_moment) || a.first_moment->dtype != DROPLESS_BF16) {
            return next(a);
          }
          const Copy moment(a.first_moment, DROPLESS_FP32);
          Adamw exact = a;
          exact.first_moment = moment.tensor();
          const dropless_status status = next(exact);
          if (status != DROPLESS_OK) return status;
          each(a.first_moment,
               [&](double, Index i) { return bf16_truncated(moment.elements().load_flat(i)); });
          return status;
        });
      });
  add("optimizer.master_ignored", "radixark 80; Megatron-LM 6470: the master copy is forgotten",
      "the weight itself is updated", "bf16 weights with an fp32 master", {"OPTIMIZER-1e"},
      [](Planted& planted) {
        planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
          if (!is_readable(a.master) || !is_readable(a.weight)) return next(a);
          const std::vector<double> weight = values_of(a.weight);
          const Copy start(a.master);
          for (std::size_t i = 0; i < weight.size(); ++i) {
            start.elements().store_flat(weight[i], static_cast<Index>(i));
          }
          Adamw b = a;
          b.master = start.tensor();
          return next(b);
        });
      });
  add("optimizer.master_never_written", "operator O10: value of the wrong twin (mcore-bridge 125)",
      "the master keeps its old value", "an fp32 master", {"OPTIMIZER-1e", "OPTIMIZER-1c"},
      [](Planted& planted) {
        planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
          const Copy master(a.master);
          Adamw b = a;
          b.master = master.tensor();
          return next(b);
        });
      });
  add("optimizer.master_holds_the_rounded_weight", "operator O15: a rounding between two steps",
      "the master is as coarse as the weight", "an fp32 master",
      {"OPTIMIZER-1c", "OPTIMIZER-1e", "OPTIMIZER-1f"}, [](Planted& planted) {
        planted.after<&Table::adamw>([](Adamw& a) {
          if (a.master == nullptr || is_stochastic(a)) return;
          each(a.master, [&](double, Index i) { return view(a.weight).load_flat(i); });
        });
      });
}

// bf16 weights that are rounded stochastically: their unrounded values, then the change.
template <class Change>
void change_stochastic(Planted& planted, Change change) {
  planted.around<&Table::adamw>([change](const auto& next, Adamw& a) {
    if (!is_readable(a.weight) || !is_stochastic(a)) return next(a);
    const Copy exact(a.weight, DROPLESS_FP32);
    const Copy first(a.first_moment), second(a.second_moment), master(a.master);
    Adamw unrounded = a;
    unrounded.weight = exact.tensor();
    unrounded.first_moment = first.tensor();
    unrounded.second_moment = second.tensor();
    unrounded.master = master.tensor();
    const dropless_status known = next(unrounded);
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || known != DROPLESS_OK) return status;
    for (Index i = 0; i < view(a.weight).size(); ++i) {
      const double p = exact.elements().load_flat(i);
      view(a.weight).store_flat(change(a, p, view(a.weight).load_flat(i), i), i);
    }
    return status;
  });
}

double away_from_zero(double p) {
  const double low = bf16_truncated(p);
  if (low == p) return p;
  const auto bits = encode_bits(DROPLESS_BF16, low);
  return decode_bits(DROPLESS_BF16, bits + 1);
}

void add_stochastic(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* symptom, std::vector<std::string> clauses,
                       void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = "operator O22: stochastic rounding gone wrong",
                      .symptom = symptom,
                      .trigger = "stochastic rounding of bf16 weights",
                      .clauses = std::move(clauses),
                      .plant = plant});
  };
  add("optimizer.stochastic_rounding_is_nearest", "weights are rounded to nearest",
      {"OPTIMIZER-1h", "OPTIMIZER-1i"}, [](Planted& planted) {
        change_stochastic(planted, [](const Adamw&, double p, double, Index) { return bf16(p); });
      });
  add("optimizer.stochastic_rounding_is_biased", "three in four roundings go away from zero",
      {"OPTIMIZER-1h"}, [](Planted& planted) {
        change_stochastic(planted, [](const Adamw& a, double p, double right, Index i) {
          const auto mixed = (static_cast<std::uint64_t>(i) + a.seed) * 0x9E3779B97F4A7C15u;
          return mixed >> 63 != 0 ? away_from_zero(p) : right;
        });
      });
  add("optimizer.stochastic_rounding_leaves_neighbours", "weights are dithered by a whole ulp",
      {"OPTIMIZER-1g"}, [](Planted& planted) {
        change_stochastic(planted, [](const Adamw&, double p, double right, Index i) {
          return i % 2 == 0 ? away_from_zero(away_from_zero(p) * (1 + 0x1p-9)) : right;
        });
      });
  add("optimizer.one_random_number_for_all", "all elements round in the same direction",
      {"OPTIMIZER-1h"}, [](Planted& planted) {
        change_stochastic(planted, [](const Adamw& a, double p, double, Index) {
          const double low = bf16_truncated(p), high = away_from_zero(p);
          const std::uint64_t mixed =
              (a.seed + static_cast<std::uint64_t>(a.step)) * 0x9E3779B97F4A7C15u;
          const double uniform = static_cast<double>(mixed >> 11) * 0x1p-53;
          return low == high || (p - low) / (high - low) <= uniform ? low : high;
        });
      });
  add("optimizer.seed_ignored", "every seed gives the same bits", {"OPTIMIZER-1i"},
      [](Planted& planted) { planted.before<&Table::adamw>([](Adamw& a) { a.seed = 0; }); });
  add("optimizer.seed_from_a_global_counter", "the same seed gives other bits",
      {"OPTIMIZER-1i", "GENERAL-5"}, [](Planted& planted) {
        planted.before<&Table::adamw>([](Adamw& a) {
          static std::uint64_t calls = 0;
          a.seed += 1000003 * ++calls;
        });
      });
  add("optimizer.exact_weights_are_dithered", "values that bf16 holds are changed",
      {"OPTIMIZER-1g"}, [](Planted& planted) {
        change_stochastic(planted, [](const Adamw&, double p, double right, Index) {
          return bf16(p) == p ? away_from_zero(p * (1 + 0x1p-12)) : right;
        });
      });
}

void add_contract(std::vector<Fault>& faults) {
  faults.push_back({.name = "optimizer.refusals_swallowed",
                    .provenance = "operator O19: a missing check (DeepGEMM 268)",
                    .symptom = "shapes that do not fit are accepted",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) { swallow_refusals<&Table::adamw>(planted); }});
  faults.push_back({.name = "optimizer.no_elements_refused",
                    .provenance = "operator O4: drop a zero case (pytorch 192497)",
                    .symptom = "a parameter without elements is rejected",
                    .trigger = "no elements",
                    .clauses = {"GENERAL-4"},
                    .plant = [](Planted& planted) {
                      refuse_empty<&Table::adamw>(planted, [](auto& a) { return a.gradient; });
                    }});
  faults.push_back({.name = "optimizer.tail_of_the_vector_loop_forgotten",
                    .provenance = "operator O5: a tail is left unwritten (mirage 764)",
                    .symptom = "the last elements keep their values",
                    .trigger = "a number of elements that is no multiple of 16",
                    .clauses = {"OPTIMIZER-1c", "OPTIMIZER-1a", "OPTIMIZER-1b", "OPTIMIZER-1e"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
                        const Copy first(a.first_moment), second(a.second_moment), master(a.master),
                            weight(a.weight);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const Index n = view(a.gradient).size();
                        for (Index i = n / 16 * 16; i < n; ++i) {
                          for (const auto& [copy, tensor] :
                               {std::pair{&first, a.first_moment},
                                std::pair{&second, a.second_moment}, std::pair{&master, a.master},
                                std::pair{&weight, a.weight}}) {
                            if (!copy->readable()) continue;
                            view(tensor).store_integer(copy->elements().load_integer(i), i);
                          }
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "optimizer.strides_ignored",
                    .provenance = "operator O6: the valid stride for the padded one",
                    .symptom = "gradients of other parameters are read",
                    .trigger = "a gradient that is a column of a matrix",
                    .clauses = {"GENERAL-6"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::adamw>([](const auto& next, Adamw& a) {
                        if (!is_readable(a.gradient)) return next(a);
                        const dropless_tensor dense = without_strides(*a.gradient);
                        a.gradient = &dense;
                        return next(a);
                      });
                    }});
  const auto ranks = [&](const char* name, const char* provenance, const char* symptom,
                         const char* trigger) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = {},
                      .visibility = Visibility::ranks,
                      .reason = "the gradient norm and its scale are made over several ranks"});
  };
  ranks("optimizer.expert_gradients_counted_by_dense_rank", "Megatron-LM 5916, 6470",
        "the gradient norm is too small", "expert and tensor parallelism together");
  ranks("optimizer.expert_gradients_scaled_by_the_dense_group",
        "Megatron-LM 7165, 7160; pytorch 160285", "expert gradients are off by a group size",
        "expert parallelism");
  ranks("optimizer.division_skipped_for_a_group_of_one", "pytorch 167178",
        "gradients are larger by the world size", "expert parallelism over all ranks");
}

}  // namespace

void add_optimizer(std::vector<Fault>& faults) {
  add_formula(faults);
  add_scale(faults);
  add_formats(faults);
  add_stochastic(faults);
  add_contract(faults);
}

}  // namespace dropless::faults
