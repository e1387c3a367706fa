// SPDX-License-Identifier: Apache-2.0
// Faults of combine and of the way back: sums, weights, roundings and gradients.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/faults/exchanges.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

using Combine = dropless_exchange_combine_args;
using DispatchBackward = dropless_exchange_dispatch_backward_args;
using CombineBackward = dropless_exchange_combine_backward_args;
constexpr auto combine = &Table::exchange_combine;
constexpr auto dispatch_backward = &Table::exchange_dispatch_backward;
constexpr auto combine_backward = &Table::exchange_combine_backward;

void expert_major(Planted& planted, int alignment, int weighting = DROPLESS_COMBINE_UNWEIGHTED) {
  planted.declare([=](dropless_profile& p) {
    p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
    p.alignment = alignment;
    p.combine_weighting = weighting;
  });
}

void after_combine(Planted& planted, Exchanges::Edit<combine> change) {
  Exchanges exchanges(planted);
  exchanges.after<combine>(std::move(change));
}

// The combine of other rows or weights: change(values, seat) on a copy of what `of` picks.
using Picked = const dropless_tensor*& (*)(Combine&);
void change_input(Planted& planted, Picked of, void (*change)(const TensorView&, Seat&)) {
  Exchanges exchanges(planted);
  exchanges.around<combine>([of, change](const auto& next, Combine& a, Seat& seat) {
    const Copy copy(of(a));
    if (!copy.readable() || !seat.delivers()) return next(a);
    change(copy.elements(), seat);
    of(a) = copy.tensor();
    return next(a);
  });
}
const dropless_tensor*& rows_of(Combine& a) {
  return a.rows;
}
const dropless_tensor*& weights_of(Combine& a) {
  return a.row_weights;
}

// change(value) on every element of the rows in use that come from a source rank.
template <class Change>
void each_of_source(const TensorView& rows, Seat& seat, Change change) {
  const std::vector<Index> sources = seat.sources();
  const Index width = row_width(rows);
  for (Index row = 0; 2 * row < static_cast<Index>(sources.size()); ++row) {
    for (Index i = row * width; i < (row + 1) * width; ++i) {
      rows.store_flat(change(rows.load_flat(i), sources[at(2 * row)]), i);
    }
  }
}

void add_sums(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.combine_rounds_twice",
                    .provenance = "operator O15: rounds too coarsely (vllm 15045)",
                    .symptom = "the sum of a rank is rounded before ranks are added up",
                    .trigger = "two experts of a token on one rank, bf16 rows",
                    .clauses = {"EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 1);
                      Exchanges exchanges(planted);
                      planted.behave_as([](dropless_profile& p) {
                        p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
                        p.combine_rounding = DROPLESS_COMBINE_ROUNDS_PER_RANK;
                      });
                    }});
  faults.push_back({.name = "exchange.sum_kept_in_bf16",
                    .provenance = "operator O15: accumulates too coarsely (mlx-lm 938)",
                    .symptom = "an fp32 result has eight bits",
                    .trigger = "an fp32 output",
                    .clauses = {"EXCHANGE-6d", "EXCHANGE-6a"},
                    .plant = [](Planted& planted) {
                      after_combine(planted, [](Combine& a, Seat&) {
                        each(a.y, [](double value, Index) { return bf16(value); });
                      });
                    }});
  faults.push_back({.name = "exchange.cast_for_the_way_home",
                    .provenance = "operator O15: rounds too coarsely (mori 625)",
                    .symptom = "rows from other ranks lose their low bits",
                    .trigger = "a profile that declares one rounding per rank",
                    .clauses = {"EXCHANGE-6c", "EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) {
                        p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
                        p.combine_rounding = DROPLESS_COMBINE_ROUNDS_PER_RANK;
                      });
                      change_input(planted, rows_of, [](const TensorView& rows, Seat& seat) {
                        each_of_source(rows, seat, [&](double value, Index from) {
                          return from < 0 || from == seat.rank ? value
                                                               : round_to(DROPLESS_E4M3, value);
                        });
                      });
                    }});
  faults.push_back({.name = "exchange.last_rank_left_out",
                    .provenance = "operator O20: off by one",
                    .symptom = "what comes from the last rank is not added",
                    .trigger = "an expert on the last rank",
                    .clauses = {"EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      change_input(planted, rows_of, [](const TensorView& rows, Seat& seat) {
                        if (seat.ranks < 2 || seat.rank + 1 < seat.ranks) return;
                        each_of_source(rows, seat, [](double, Index) { return 0.0; });
                      });
                    }});
  faults.push_back({.name = "exchange.own_rank_added_twice",
                    .provenance = "operator O14: contribute twice (sglang 32962)",
                    .symptom = "what stayed on the rank counts twice",
                    .trigger = "an expert on the token's own rank",
                    .clauses = {"EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      change_input(planted, rows_of, [](const TensorView& rows, Seat& seat) {
                        each_of_source(rows, seat, [&](double value, Index from) {
                          return from == seat.rank ? 2 * value : value;
                        });
                      });
                    }});
  faults.push_back({.name = "exchange.tokens_in_the_order_of_receipt",
                    .provenance = "operator O3: send and receive order swapped (mori 475)",
                    .symptom = "sums stand at the place of another token",
                    .trigger = "two tokens",
                    .clauses = {"EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      after_combine(planted, [](Combine& a, Seat& seat) {
                        if (seat.tokens() < 2) return;
                        const Copy old(a.y);
                        copy_row(old.elements(), 0, view(a.y), 1);
                        copy_row(old.elements(), 1, view(a.y), 0);
                      });
                    }});
  // The first combine is that of the calls that were made, the second without what comes from other
  // nodes; all ranks make both.
  faults.push_back({.name = "exchange.ids_of_the_receiver_in_combine",
                    .provenance = "mori 475, 546",
                    .symptom = "whether a token has rows on other nodes is asked of another token",
                    .trigger = "two nodes",
                    .clauses = {"EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.around<combine>([](const auto& next, Combine& a, Seat& seat) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || !seat.delivers()) return status;
                        const auto& nodes = seat.plan().topology.node_of_rank;
                        const Copy rows(a.rows), local(a.y);
                        each_of_source(rows.elements(), seat, [&](double value, Index from) {
                          const bool same = from < 0 || nodes[at(from)] == nodes[at(seat.rank)];
                          return same ? value : 0.0;
                        });
                        Combine b = a;
                        b.rows = rows.tensor(), b.y = local.tensor();
                        if (next(b) != DROPLESS_OK) return status;
                        const auto goes_far = [&](Index t) {
                          const auto& plan = seat.plan();
                          const Index first = (plan.first_token[at(seat.rank)] + t) * seat.top_k;
                          bool far = false;
                          for (Index pair = first; pair < first + seat.top_k; ++pair) {
                            if (plan.slot_of_pair[at(pair)] < 0) continue;
                            const Index to = plan.rank_of_pair(pair);
                            far = far || nodes[at(to)] != nodes[at(seat.rank)];
                          }
                          return far;
                        };
                        for (Index t = 0; t < seat.tokens(); ++t) {
                          if (goes_far((t + 1) % seat.tokens())) continue;
                          copy_row(local.elements(), t, view(a.y), t);
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "exchange.token_without_rows_not_written",
                    .provenance = "operator O4: a zero case that is dropped",
                    .symptom = "the output of a token without an expert is what was there before",
                    .trigger = "a token without an expert",
                    .clauses = {"EXCHANGE-6a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.around<combine>([](const auto& next, Combine& a, Seat& seat) {
                        const Copy old(a.y);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        for (Index t = 0; t < seat.tokens(); ++t) {
                          const auto first = seat.ids.begin() + t * seat.top_k;
                          const bool some = std::any_of(first, first + seat.top_k,
                                                        [](Index id) { return id >= 0; });
                          if (!some) copy_row(old.elements(), t, view(a.y), t);
                        }
                        return status;
                      });
                    }});
}

// What a sum over all rows of the buffer would bring: the first element of rows that are not real.
double sum_of_others(const dropless_tensor* rows, Seat& seat, bool padding) {
  const std::vector<Index> sources = seat.sources();
  const TensorView values = view(rows);
  const Index used = static_cast<Index>(sources.size()) / 2, width = row_width(values);
  double sum = 0;
  for (Index row = 0; row < values.shape(0) && width > 0; ++row) {
    const bool wanted = padding ? row < used && sources[at(2 * row)] < 0 : row >= used;
    if (wanted) sum += values.load_flat(row * width);
  }
  return sum;
}

void add_to_first(const dropless_tensor* out, double more) {
  if (has_elements(out)) view(out).store_flat(view(out).load_flat(0) + more, 0);
}

void add_others(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.padding_joins_the_sum",
                    .provenance = "Transformer Engine 3484",
                    .symptom = "what padding holds is added to a token",
                    .trigger = "padding that comes back with NaN",
                    .clauses = {"EXCHANGE-6e"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 16);
                      after_combine(planted, [](Combine& a, Seat& seat) {
                        add_to_first(a.y, sum_of_others(a.rows, seat, true));
                      });
                    }});
  faults.push_back({.name = "exchange.tail_joins_the_sum",
                    .provenance = "kernels-community 1056",
                    .symptom = "rows beyond the last one are added to a token, with weight 0",
                    .trigger = "a tail that comes back with NaN",
                    .clauses = {"EXCHANGE-6e"},
                    .plant = [](Planted& planted) {
                      after_combine(planted, [](Combine& a, Seat& seat) {
                        add_to_first(a.y, 0 * sum_of_others(a.rows, seat, false));
                      });
                    }});
  faults.push_back({.name = "exchange.gradient_of_padding_joins",
                    .provenance = "operator O16: the mask is in the forward pass only",
                    .symptom = "what padding of d_rows holds is added to a token",
                    .trigger = "padding that comes back with NaN",
                    .clauses = {"EXCHANGE-6e", "EXCHANGE-7a"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 16);
                      Exchanges exchanges(planted);
                      exchanges.after<dispatch_backward>([](DispatchBackward& a, Seat& seat) {
                        add_to_first(a.d_x, sum_of_others(a.d_rows, seat, true));
                      });
                    }});
}

void add_weights(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* provenance, const char* symptom,
                       void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = "a weighted combine",
                      .clauses = {"EXCHANGE-6b", "EXCHANGE-6d"},
                      .plant = plant});
  };
  add("exchange.combine_without_weights", "operator O9: a factor that is applied never",
      "rows are added up as they are", [](Planted& planted) {
        expert_major(planted, 1, DROPLESS_COMBINE_WEIGHTED);
        change_input(planted, weights_of, [](const TensorView& weights, Seat&) {
          for (Index i = 0; i < weights.size(); ++i) weights.store_flat(1, i);
        });
      });
  add("exchange.weights_twice", "operator O9: a factor that is applied twice",
      "a row counts with the square of its weight", [](Planted& planted) {
        expert_major(planted, 1, DROPLESS_COMBINE_WEIGHTED);
        change_input(planted, weights_of, [](const TensorView& weights, Seat&) {
          for (Index i = 0; i < weights.size(); ++i) {
            const double w = weights.load_flat(i);
            weights.store_flat(w * w, i);
          }
        });
      });
  add("exchange.weights_without_padding", "operator O6: the valid stride for the padded one",
      "weights are read as if rows had no padding", [](Planted& planted) {
        expert_major(planted, 16, DROPLESS_COMBINE_WEIGHTED);
        change_input(planted, weights_of, [](const TensorView& weights, Seat& seat) {
          const std::vector<Index> sources = seat.sources();
          std::vector<double> old;
          for (Index i = 0; i < weights.size(); ++i) old.push_back(weights.load_flat(i));
          Index next = 0;
          for (Index row = 0; 2 * row < static_cast<Index>(sources.size()); ++row) {
            if (sources[at(2 * row)] < 0) continue;
            const double w = old[at(next++)];
            weights.store_flat(std::isnan(w) ? 0 : w, row);
          }
        });
      });
}

void add_dispatch_backward(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  add("exchange.gradient_of_gather_is_a_slice", "Automodel 1260",
      "the gradient of a token lacks what other ranks have computed", "two ranks",
      {"EXCHANGE-7d", "EXCHANGE-7a", "EXCHANGE-6d"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<dispatch_backward>([](const auto& next, DispatchBackward& a, Seat& seat) {
          const Copy rows(a.d_rows);
          if (!rows.readable() || !seat.delivers()) return next(a);
          each_of_source(rows.elements(), seat,
                         [&](double value, Index from) { return from == seat.rank ? value : 0.0; });
          a.d_rows = rows.tensor();
          return next(a);
        });
      });
  add("exchange.gradient_averaged_over_ranks", "pytorch 160285", "d_x is divided by R",
      "several ranks", {"EXCHANGE-13", "EXCHANGE-7a", "EXCHANGE-6d"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<dispatch_backward>([](DispatchBackward& a, Seat& seat) {
          each(a.d_x, [&](double value, Index) { return value / double(seat.ranks); });
        });
      });
  add("exchange.score_gradient_not_summed", "transformers 48205, part 2",
      "weight gradients of pairs on other ranks are lost", "two ranks", {"EXCHANGE-7b"},
      [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<dispatch_backward>([](DispatchBackward& a, Seat& seat) {
          const auto& plan = seat.plan();
          const Index first = plan.first_token[at(seat.rank)] * seat.top_k;
          each(a.d_weights, [&](double value, Index i) {
            const Index slot = plan.slot_of_pair[at(first + i)];
            return slot >= 0 && plan.topology.rank_of(slot) != seat.rank ? 0.0 : value;
          });
        });
      });
  add("exchange.weight_gradients_missing", "operator O16: no backward twin",
      "gradients of weights that travelled are 0", "weights that travel", {"EXCHANGE-7b"},
      [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<dispatch_backward>([](DispatchBackward& a, Seat&) {
          each(a.d_weights, [](double, Index) { return 0.0; });
        });
      });
  add("exchange.weight_gradients_in_ascending_order",
      "operator O16: sorted on the way out, not sorted back",
      "weight gradients stand in ascending order of experts", "ids that are not sorted",
      {"EXCHANGE-7b"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<dispatch_backward>([](DispatchBackward& a, Seat& seat) {
          const std::vector<double> right = values_of(a.d_weights);
          each(a.d_weights, [&](double value, Index i) {
            const Index first = i / seat.top_k * seat.top_k;
            if (seat.ids[at(i)] < 0) return value;
            std::vector<std::pair<Index, Index>> by_id;
            std::vector<Index> real;
            for (Index j = first; j < first + seat.top_k; ++j) {
              if (seat.ids[at(j)] >= 0) by_id.emplace_back(seat.ids[at(j)], j), real.push_back(j);
            }
            std::sort(by_id.begin(), by_id.end());
            const auto place = std::find(real.begin(), real.end(), i) - real.begin();
            return right[at(by_id[at(place)].second)];
          });
        });
      });
  add("exchange.gradient_for_no_expert", "operator O5: a tail that is written to slot 0",
      "a pair with id -1 gets the gradient of its neighbour", "an id of -1", {"EXCHANGE-7b"},
      [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<dispatch_backward>([](DispatchBackward& a, Seat& seat) {
          const std::vector<double> right = values_of(a.d_weights);
          each(a.d_weights, [&](double value, Index i) {
            return seat.ids[at(i)] < 0 && i > 0 ? right[at(i) - 1] : value;
          });
        });
      });
  add("exchange.gradient_weighted_once_more", "operator O9: a factor twice",
      "d_x sums row gradients times the weights that travelled", "weights other than 1",
      {"EXCHANGE-7a", "EXCHANGE-7d", "EXCHANGE-6d"}, [](Planted& planted) {
        expert_major(planted, 1);
        Exchanges exchanges(planted);
        exchanges.after<&Table::exchange_dispatch>(
            [](dropless_exchange_dispatch_args& a, Seat& seat) {
              seat.values = values_of(a.row_weights);
            });
        exchanges.around<dispatch_backward>([](const auto& next, DispatchBackward& a, Seat& seat) {
          const Copy rows(a.d_rows);
          if (!rows.readable() || seat.values.empty()) return next(a);
          const TensorView values = rows.elements();
          const Index width = row_width(values);
          for (Index i = 0; i < seat.received().rows() * width; ++i) {
            values.store_flat(values.load_flat(i) * seat.values[at(i / width)], i);
          }
          a.d_rows = rows.tensor();
          return next(a);
        });
      });
}

void add_combine_backward(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  add("exchange.row_gradients_without_weights", "operator O16: no backward twin",
      "d_rows is the dispatch of d_y, without the weights of the combine", "a weighted combine",
      {"EXCHANGE-7c", "EXCHANGE-7d"}, [](Planted& planted) {
        expert_major(planted, 1, DROPLESS_COMBINE_WEIGHTED);
        Exchanges exchanges(planted);
        exchanges.around<combine_backward>([](const auto& next, CombineBackward& a, Seat&) {
          const Copy ones(a.row_weights);
          each(ones.tensor(), [](double, Index) { return 1.0; });
          a.row_weights = ones.tensor();
          return next(a);
        });
      });
  add("exchange.weight_gradient_summed_in_bf16", "operator O15: accumulates too coarsely",
      "d_row_weights has eight bits", "a weighted combine", {"EXCHANGE-7c"}, [](Planted& planted) {
        expert_major(planted, 1, DROPLESS_COMBINE_WEIGHTED);
        Exchanges exchanges(planted);
        exchanges.after<combine_backward>([](CombineBackward& a, Seat&) {
          each(a.d_row_weights, [](double value, Index) { return bf16(value); });
        });
      });
  add("exchange.gradient_of_the_first_expert_only", "operator O14: to a neighbour",
      "a token's gradient reaches its first rank only", "a token on two ranks",
      {"EXCHANGE-7c", "EXCHANGE-7d"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.after<combine_backward>([](CombineBackward& a, Seat& seat) {
          const auto& plan = seat.plan();
          const auto& source = seat.received().source;
          for (std::size_t row = 0; row < source.size(); ++row) {
            for (Index pair = source[row] * seat.top_k; pair < (source[row] + 1) * seat.top_k;
                 ++pair) {
              if (plan.slot_of_pair[at(pair)] < 0) continue;
              if (plan.rank_of_pair(pair) != seat.rank) {
                clear_row(view(a.d_rows), static_cast<Index>(row));
              }
              break;
            }
          }
        });
      });
  add("exchange.gradient_padding_not_written", "operator O5: a tail that is not written",
      "padding of d_rows holds what was there before", "a zone that is not full", {"EXCHANGE-3d"},
      [](Planted& planted) {
        expert_major(planted, 16);
        Exchanges exchanges(planted);
        exchanges.around<combine_backward>([](const auto& next, CombineBackward& a, Seat& seat) {
          const Copy old(a.d_rows);
          const dropless_status status = next(a);
          if (status != DROPLESS_OK) return status;
          const auto& source = seat.received().source;
          for (std::size_t row = 0; row < source.size(); ++row) {
            const auto r = static_cast<Index>(row);
            if (source[row] < 0) copy_row(old.elements(), r, view(a.d_rows), r);
          }
          return status;
        });
      });
}

// A matrix that is a part of a larger one is taken for one of its own.
template <auto entry>
void as_dense(Planted& planted, const dropless_tensor* Exchanges::Args<entry>::*matrix) {
  Exchanges exchanges(planted);
  exchanges.around<entry>([matrix](const auto& next, auto& a, Seat&) {
    if (!has_elements(a.*matrix)) return next(a);
    const dropless_tensor dense = without_strides(*(a.*matrix));
    a.*matrix = &dense;
    return next(a);
  });
}

void add_strides(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  constexpr const char* padded = "operator O6: the valid stride for the padded one";
  add("exchange.strides_of_expert_output_ignored", padded, "rows of other pairs are added up",
      "expert output with gaps between its rows", {"EXCHANGE-6a", "EXCHANGE-6d"},
      [](Planted& planted) { as_dense<combine>(planted, &Combine::rows); });
  add("exchange.gradient_taken_as_contiguous", "pytorch 159620: a chunk of a fused matrix",
      "gradients of other tokens are sent", "an output gradient with gaps between its rows",
      {"EXCHANGE-7c"},
      [](Planted& planted) { as_dense<combine_backward>(planted, &CombineBackward::d_y); });
  add("exchange.strides_of_input_gradient_ignored", padded,
      "sums of row gradients are written without gaps",
      "an input gradient with gaps between its rows", {"EXCHANGE-7a", "GENERAL-0"},
      [](Planted& planted) { as_dense<dispatch_backward>(planted, &DispatchBackward::d_x); });
}

}  // namespace

void add_exchange_sums(std::vector<Fault>& faults) {
  add_sums(faults);
  add_others(faults);
  add_weights(faults);
  add_dispatch_backward(faults);
  add_combine_backward(faults);
  add_strides(faults);
}

}  // namespace dropless::faults
