// SPDX-License-Identifier: Apache-2.0
// Faults of what a dispatch delivers: rows, their order, padding, tail, scales, weights and ids.
#include <algorithm>
#include <numeric>

#include "tests/faults/exchanges.h"

namespace dropless::faults {
namespace {

using Dispatch = dropless_exchange_dispatch_args;
constexpr auto dispatch = &Table::exchange_dispatch;

void after_dispatch(Planted& planted, Exchanges::Edit<dispatch> change) {
  Exchanges exchanges(planted);
  exchanges.after<dispatch>(std::move(change));
}

void expert_major(Planted& planted, int alignment) {
  planted.declare([alignment](dropless_profile& p) {
    p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
    p.alignment = alignment;
  });
}

// Rows of the plan in force that hold a token, or padding.
std::vector<Index> rows_with(Seat& seat, bool token) {
  const auto& source = seat.received().source;
  std::vector<Index> rows;
  for (std::size_t row = 0; row < source.size(); ++row) {
    if ((source[row] >= 0) == token) rows.push_back(static_cast<Index>(row));
  }
  return rows;
}

// Rows in another order; change(order, seat) on 0 .. rows - 1.
void reorder(Planted& planted, void (*change)(std::vector<Index>&, Seat&)) {
  after_dispatch(planted, [change](Dispatch& a, Seat& seat) {
    std::vector<Index> order(seat.received().source.size());
    std::iota(order.begin(), order.end(), Index{0});
    change(order, seat);
    reorder_rows(a, order);
  });
}

// Rows of `picked` in the outputs of `of` stay as they were before the call.
using Picked = std::vector<Index> (*)(Seat&);
using Output = const dropless_tensor* (*)(const Dispatch&);
void leave_rows(Planted& planted, Output of, Picked picked) {
  Exchanges exchanges(planted);
  exchanges.around<dispatch>([of, picked](const auto& next, Dispatch& a, Seat& seat) {
    const Copy old(of(a));
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || !old.readable() || !seat.delivers()) return status;
    for (const Index row : picked(seat)) copy_row(old.elements(), row, view(of(a)), row);
    return status;
  });
}

void add_payload(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.last_row_of_a_peer_lost",
                    .provenance = "operator O20: off by one (vllm-ascend 10335)",
                    .symptom = "the last row from another rank is never written",
                    .trigger = "a row from another rank",
                    .clauses = {"EXCHANGE-1a", "EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      leave_rows(
                          planted, [](const Dispatch& a) { return a.rows; },
                          [](Seat& seat) {
                            const std::vector<Index> sources = seat.sources();
                            std::vector<Index> last;
                            for (Index row = 0; 2 * row < Index(sources.size()); ++row) {
                              const Index from = sources[at(2 * row)];
                              if (from >= 0 && from != seat.rank) last = {row};
                            }
                            return last;
                          });
                    }});
  faults.push_back({.name = "exchange.row_doubled",
                    .provenance = "operator O14: contribute twice, or to a neighbour",
                    .symptom = "a row comes twice, and the one after it not at all",
                    .trigger = "two rows on a rank",
                    .clauses = {"EXCHANGE-1b", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        const std::vector<Index> rows = rows_with(seat, true);
                        if (rows.size() < 2) return;
                        const std::size_t middle = rows.size() / 2;
                        copy_row(view(a.rows), rows[middle - 1], view(a.rows), rows[middle]);
                      });
                    }});
  faults.push_back({.name = "exchange.two_received_tokens",
                    .provenance = "DeepEP 602",
                    .symptom = "the second of two rows is not written",
                    .trigger = "exactly two rows on a rank",
                    .clauses = {"EXCHANGE-1a", "EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      leave_rows(
                          planted, [](const Dispatch& a) { return a.rows; },
                          [](Seat& seat) {
                            const std::vector<Index> rows = rows_with(seat, true);
                            return rows.size() == 2 ? std::vector<Index>{rows[1]}
                                                    : std::vector<Index>{};
                          });
                    }});
  faults.push_back({.name = "exchange.row_truncated_to_vectors",
                    .provenance = "operator O5: a tail that is not written",
                    .symptom = "the last bytes of a row are not copied",
                    .trigger = "rows that are no multiple of 16 bytes",
                    .clauses = {"EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        const TensorView rows = view(a.rows);
                        const Index width = row_width(rows);
                        const Index unit = 16 / element_bytes(rows.dtype());
                        for (const Index row : rows_with(seat, true)) {
                          for (Index i = width / unit * unit; i < width; ++i) {
                            rows.store_integer_flat(0, row * width + i);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.row_torn",
                    .provenance = "operator O7: a wait that is missing (DeepEP 621)",
                    .symptom = "the last unit of a row is that of the row before",
                    .trigger = "rows of several units",
                    .clauses = {"EXCHANGE-1a", "EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        const TensorView rows = view(a.rows);
                        const std::vector<Index> real = rows_with(seat, true);
                        const Index width = row_width(rows);
                        const Index unit = 16 / element_bytes(rows.dtype());
                        if (real.size() < 2 || width < 2 * unit) return;
                        const Index before = real[real.size() - 2] * width,
                                    last = real.back() * width;
                        for (Index i = width / unit * unit - unit; i < width; ++i) {
                          rows.store_integer_flat(rows.load_integer_flat(before + i), last + i);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.payload_passes_through_arithmetic",
                    .provenance = "operator O11: a type that is read as another one",
                    .symptom = "NaN lose their payload, negative zeros their sign",
                    .trigger = "codes that are NaN or -0",
                    .clauses = {"EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        const TensorView rows = view(a.rows);
                        if (!is_floating_point(rows.dtype())) return;
                        for (Index i = 0; i < seat.received().rows() * row_width(rows); ++i) {
                          rows.store_flat(rows.load_flat(i) + 0.0, i);
                        }
                      });
                    }});
}

void add_order(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.rows_by_order_of_arrival",
                    .provenance = "vllm-ascend 10335",
                    .symptom = "a rank's own rows come first, then those of the next rank",
                    .trigger = "three senders with different counts",
                    .clauses = {"EXCHANGE-3a", "EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      reorder(planted, [](std::vector<Index>& order, Seat& seat) {
                        const std::vector<Index> sources = seat.sources();
                        std::stable_sort(order.begin(), order.end(), [&](Index x, Index y) {
                          const auto turn = [&](Index row) {
                            return (sources[at(2 * row)] - seat.rank + seat.ranks) % seat.ranks;
                          };
                          return turn(x) < turn(y);
                        });
                      });
                    }});
  faults.push_back({.name = "exchange.tokens_of_a_source_reversed",
                    .provenance = "operator O15: in any order (vllm 53440)",
                    .symptom = "the tokens of a source rank stand in another order",
                    .trigger = "two tokens of one rank",
                    .clauses = {"EXCHANGE-3a", "EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      reorder(planted, [](std::vector<Index>& order, Seat& seat) {
                        Index first = 0;
                        for (const Index rows : seat.received().rows_per_source) {
                          std::reverse(order.begin() + first, order.begin() + first + rows);
                          first += rows;
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.zones_by_token_before_rank",
                    .provenance = "operator O3: swapped index spaces (Megatron-LM 3626)",
                    .symptom = "rows of an expert are sorted by (token, source rank)",
                    .trigger = "an expert with tokens of two ranks",
                    .clauses = {"EXCHANGE-3c", "EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 16);
                      reorder(planted, [](std::vector<Index>& order, Seat& seat) {
                        const std::vector<Index> sources = seat.sources();
                        const auto& received = seat.received();
                        for (std::size_t e = 0; e < received.tokens_per_local_expert.size(); ++e) {
                          const auto first = order.begin() + received.offsets[e];
                          std::stable_sort(first, first + received.tokens_per_local_expert[e],
                                           [&](Index x, Index y) {
                                             return sources[at(2 * x + 1)] < sources[at(2 * y + 1)];
                                           });
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.source_names_the_receiver",
                    .provenance = "operator O3: send and receive order swapped (mori 475)",
                    .symptom = "row_source holds the receiving rank",
                    .trigger = "an unordered layout and two ranks",
                    .clauses = {"EXCHANGE-3e"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) {
                        p.dispatch_layout = DROPLESS_DISPATCH_UNORDERED_FLAT;
                      });
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        each_integer(a.row_source, [&](Index value, Index i) {
                          const bool real = i / 2 < seat.received().rows() && value >= 0;
                          return i % 2 == 0 && real ? seat.rank : value;
                        });
                      });
                    }});
  faults.push_back({.name = "exchange.order_belongs_to_the_dispatch",
                    .provenance = "operator O8: state without a generation",
                    .symptom = "a second dispatch delivers in another order than combine takes",
                    .trigger = "an unordered layout and two dispatches of a plan",
                    .clauses = {"EXCHANGE-3e", "EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) {
                        p.dispatch_layout = DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR;
                      });
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        const bool again = seat.mark == seat.plans;
                        seat.mark = seat.plans;
                        if (!again) return;
                        const auto& received = seat.received();
                        std::vector<Index> order(received.source.size());
                        std::iota(order.begin(), order.end(), Index{0});
                        for (std::size_t e = 0; e < received.tokens_per_local_expert.size(); ++e) {
                          const auto first = order.begin() + received.offsets[e];
                          std::reverse(first, first + received.tokens_per_local_expert[e]);
                        }
                        reorder_rows(a, order);
                      });
                    }});
}

void add_padding(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.padding_rows_not_written",
                    .provenance = "Transformer Engine 3070",
                    .symptom = "padding holds what was there before",
                    .trigger = "a zone that is not full",
                    .clauses = {"EXCHANGE-3d"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 16);
                      leave_rows(
                          planted, [](const Dispatch& a) { return a.rows; },
                          [](Seat& seat) { return rows_with(seat, false); });
                    }});
  faults.push_back({.name = "exchange.padding_scales_not_written",
                    .provenance = "Primus-Turbo 401",
                    .symptom = "scales beside padding hold what was there before",
                    .trigger = "a zone that is not full, and scales",
                    .clauses = {"EXCHANGE-3d"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 16);
                      leave_rows(
                          planted, [](const Dispatch& a) { return a.row_scales; },
                          [](Seat& seat) { return rows_with(seat, false); });
                    }});
  faults.push_back({.name = "exchange.tail_of_received_ids_stale",
                    .provenance = "DeepEP 739",
                    .symptom = "rows beyond the last one name expert 0",
                    .trigger = "a worst-case buffer",
                    .clauses = {"EXCHANGE-3f"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        const Index used = seat.received().rows() * seat.top_k;
                        each_integer(a.row_ids,
                                     [&](Index id, Index i) { return i < used ? id : 0; });
                      });
                    }});
  faults.push_back({.name = "exchange.tail_cleared_against_the_profile",
                    .provenance = "operator O17: a neighbouring mode",
                    .symptom = "rows beyond the last one are overwritten",
                    .trigger = "a tail that is to be left alone",
                    .clauses = {"EXCHANGE-3f"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      planted.behave_as(
                          [](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_ZERO; });
                    }});
  faults.push_back(
      {.name = "exchange.tail_not_cleared",
       .provenance = "operator O5: a tail that is not written",
       .symptom = "rows beyond the last one are stale",
       .trigger = "a profile with a tail of zeros",
       .clauses = {"EXCHANGE-3f"},
       .plant = [](Planted& planted) {
         planted.declare([](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_ZERO; });
         Exchanges exchanges(planted);
         planted.behave_as([](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_UNTOUCHED; });
       }});
}

// An implementation's weights: change(weights, seat) on what was sent, [T,K].
void change_weights(Planted& planted, void (*change)(const TensorView&, Seat&)) {
  Exchanges exchanges(planted);
  exchanges.around<dispatch>([change](const auto& next, Dispatch& a, Seat& seat) {
    const Copy weights(a.weights);
    if (!weights.readable()) return next(a);
    change(weights.elements(), seat);
    a.weights = weights.tensor();
    return next(a);
  });
}

void add_company(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.probabilities_gathered_in_bf16",
                    .provenance = "Megatron-LM 1421",
                    .symptom = "weights have lost sixteen bits",
                    .trigger = "weights that are cast for transport",
                    .clauses = {"EXCHANGE-2b"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](const TensorView& weights, Seat&) {
                        for (Index i = 0; i < weights.size(); ++i) {
                          weights.store_flat(bf16(weights.load_flat(i)), i);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.subnormal_weights_flushed",
                    .provenance = "operator O15: too coarse",
                    .symptom = "weights below the smallest normal number arrive as 0",
                    .trigger = "subnormal weights",
                    .clauses = {"EXCHANGE-2b"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](const TensorView& weights, Seat&) {
                        for (Index i = 0; i < weights.size(); ++i) {
                          const Index bits = weights.load_integer_flat(i);
                          if ((bits & 0x7f800000) == 0) weights.store_integer_flat(0, i);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.weights_by_position_not_by_id",
                    .provenance = "operator O3: swapped index spaces",
                    .symptom = "ids are sorted, the weights beside them are not",
                    .trigger = "two experts of a token on one rank, in descending order",
                    .clauses = {"EXCHANGE-2b"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        if (!has_elements(a.row_weights)) return;
                        const auto& plan = seat.plan();
                        const TensorView sent = view(a.weights), out = view(a.row_weights);
                        for (const Index row : rows_with(seat, true)) {
                          const Index token = plan.received[at(seat.rank)].source[at(row)];
                          if (plan.source_rank(token) != seat.rank) continue;
                          Index column = 0;
                          for (Index j = 0; j < seat.top_k; ++j) {
                            const Index pair = token * seat.top_k + j;
                            if (plan.row_of_pair[at(pair)] != row ||
                                plan.rank_of_pair(pair) != seat.rank) {
                              continue;
                            }
                            const Index t = token - plan.first_token[at(seat.rank)];
                            out.store_integer(sent.load_integer(t, j), row, column++);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.zero_weight_erases_the_row",
                    .provenance = "transformers 48687, 48689",
                    .symptom = "a row whose weights are all 0 arrives as zeros",
                    .trigger = "a weight of exactly 0",
                    .clauses = {"EXCHANGE-2a", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        if (!has_elements(a.row_weights)) return;
                        const TensorView weights = view(a.row_weights);
                        const Index width = row_width(weights);
                        for (const Index row : rows_with(seat, true)) {
                          bool none = true;
                          for (Index i = row * width; i < (row + 1) * width; ++i) {
                            none = none && weights.load_flat(i) == 0;
                          }
                          if (none) clear_row(view(a.rows), row);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.unused_weights_are_one",
                    .provenance = "operator O1: 1 for a neutral element",
                    .symptom = "columns without an id have weight 1",
                    .trigger = "a token with an expert elsewhere",
                    .clauses = {"EXCHANGE-2b"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        if (!has_elements(a.row_ids) || !has_elements(a.row_weights)) return;
                        const Index used = seat.received().rows() * seat.top_k;
                        const TensorView ids = view(a.row_ids), weights = view(a.row_weights);
                        for (Index i = 0; i < used; ++i) {
                          if (ids.load_integer_flat(i) < 0) weights.store_flat(1, i);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.scales_of_the_row_before",
                    .provenance = "Transformer Engine 3447",
                    .symptom = "scales stand one row further than their payload",
                    .trigger = "scales that travel",
                    .clauses = {"EXCHANGE-2b"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        if (!has_elements(a.row_scales)) return;
                        const Copy old(a.row_scales);
                        const std::vector<Index> rows = rows_with(seat, true);
                        for (std::size_t i = 0; i < rows.size(); ++i) {
                          const Index from = rows[(i + rows.size() - 1) % rows.size()];
                          copy_row(old.elements(), from, view(a.row_scales), rows[i]);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.scales_without_padding",
                    .provenance = "operator O6: the valid stride for the padded one",
                    .symptom = "scales are packed, their payload is padded",
                    .trigger = "a zone behind padding",
                    .clauses = {"EXCHANGE-2b"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 16);
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        if (!has_elements(a.row_scales)) return;
                        const Copy old(a.row_scales);
                        for (Index row = 0; row < seat.received().rows(); ++row) {
                          clear_row(view(a.row_scales), row);
                        }
                        Index next = 0;
                        for (const Index row : rows_with(seat, true)) {
                          copy_row(old.elements(), row, view(a.row_scales), next++);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.ids_in_the_order_of_top_k",
                    .provenance = "operator O17: a neighbouring mode",
                    .symptom = "ids stay at their positions, with holes between them",
                    .trigger = "a token with an expert elsewhere",
                    .clauses = {"EXCHANGE-3b"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      planted.behave_as(
                          [](dropless_profile& p) { p.flat_ids = DROPLESS_FLAT_IDS_IN_PLACE; });
                    }});
  faults.push_back({.name = "exchange.ids_are_global",
                    .provenance = "operator O3: global for local",
                    .symptom = "row_ids hold numbers of experts, not of slots",
                    .trigger = "any rank but the first",
                    .clauses = {"EXCHANGE-3b"},
                    .plant = [](Planted& planted) {
                      after_dispatch(planted, [](Dispatch& a, Seat& seat) {
                        const Index used = seat.received().rows() * seat.top_k;
                        each_integer(a.row_ids, [&](Index id, Index i) {
                          return i < used && id >= 0 ? id + seat.rank * seat.slots : id;
                        });
                      });
                    }});
}

}  // namespace

void add_exchange_rows(std::vector<Fault>& faults) {
  add_payload(faults);
  add_order(faults);
  add_padding(faults);
  add_company(faults);
}

}  // namespace dropless::faults
