// SPDX-License-Identifier: Apache-2.0
// Dispatch, combine and their backwards behind the contract.
#include <memory>

#include "reference/checks.h"
#include "reference/contract/exchange_calls.h"
#include "reference/contract/operations.h"
#include "reference/contract/rows.h"
#include "reference/contract/tensor.h"

namespace dropless::reference::contract {
namespace {

using Views = std::vector<std::span<const std::byte>>;

Views views_of(const Round& round, std::vector<std::byte> Deposit::*member) {
  Views views;
  for (const Deposit& one : round.deposits) views.emplace_back(one.*member);
  return views;
}

std::vector<Input> inputs_of(const Round& round, Doubles Deposit::*member) {
  std::vector<Input> inputs;
  for (const Deposit& one : round.deposits) inputs.emplace_back(one.*member);
  return inputs;
}

// A plan whose overflow no check has seen yet: calls succeed and write nothing (EXCHANGE-10).
bool is_silent(const ExchangeSeat& seat) {
  return seat.board->handle().state() == HandleState::silent;
}

const ExchangePlan& plan_in_force(const ExchangeSeat& seat) {
  return seat.board->handle().plan_in_force();
}

bool is_weighted(const ExchangePlan& plan) {
  return !plan.flat && plan.profile.combine_weighting == DROPLESS_COMBINE_WEIGHTED;
}

void check_rows(const TensorView& rows, const ReceivedRows& received, const char* name) {
  if (rows.shape(0) >= received.rows()) return;
  throw Refused(std::string(name) + " holds " + std::to_string(rows.shape(0)) + " rows, " +
                std::to_string(received.rows()) + " are in use");
}

void check_bytes(const TensorView& view, Index most, const char* name) {
  const Index bytes = view.shape(1) * static_cast<Index>(element_bytes(view.dtype()));
  if (bytes > most) {
    throw Refused("a row of " + std::string(name) + " has " + std::to_string(bytes) +
                  " bytes, more than the settings' " + std::to_string(most));
  }
}

// Integers of the rows in use, -1 in the tail where it is to be written.
void write_row_integers(const TensorView& view, const std::vector<Index>& values,
                        const dropless_profile& profile) {
  const Index width = view.shape(1);
  for (Index i = 0; i < view.shape(0) * width; ++i) {
    const bool in_use = i < static_cast<Index>(values.size());
    if (!in_use && profile.tail_rows != DROPLESS_TAIL_ZERO) break;
    view.store_integer(in_use ? values[at(i)] : -1, i / width, i % width);
  }
}

// Per-row shape of weights: flat [N,K], expert-major [N].
TensorView weight_rows(const ExchangePlan& plan, const dropless_tensor* argument, const char* name,
                       Index rows) {
  return plan.flat ? tensor(argument, name, Element::fp32, {rows, plan.top_k})
                   : tensor(argument, name, Element::fp32, {rows});
}

// Rows in use of a gradient, padding zero, tail by the profile.
void write_gradient_rows(const ExchangePlan& plan, Index rank, const TensorView& view,
                         Doubles values) {
  const std::vector<Compact>& source = plan.received[at(rank)].source;
  std::vector<RowKind> kinds(at(view.shape(0)), RowKind::tail);
  for (std::size_t row = 0; row < source.size(); ++row) {
    kinds[row] = source[row] < 0 ? RowKind::padding : RowKind::real;
  }
  values.resize(at(view.size()), 0.0);
  write_rows(view, values, kinds, plan.profile);
}

}  // namespace

void exchange_dispatch(const dropless_profile& profile, dropless_exchange_dispatch_args* args) {
  const dropless_exchange_dispatch_args a = completed(args, "arguments");
  const ExchangeSeat& seat = seat_of(a.exchange);
  if (is_silent(seat)) return;
  const ExchangeSettings& settings = seat.board->settings();
  struct Outputs {
    TensorView rows;
    std::optional<TensorView> scales, weights, ids, source;
  };
  Deposit mine{.call = ExchangeCall::dispatch};
  const auto out = or_refuse(seat, [&] {
    const ExchangePlan& plan = plan_in_force(seat);
    const Index tokens = plan.tokens(seat.rank);
    const TensorView x = tensor(a.x, "x", Element::any, {tokens, kAny});
    check_bytes(x, settings.row_bytes, "x");
    const TensorView rows = tensor(a.rows, "rows", Element::any, {kAny, x.shape(1)});
    if (rows.dtype() != x.dtype()) throw Refused("rows has another dtype than x");
    check_rows(rows, plan.received[at(seat.rank)], "rows");
    Outputs views{rows, {}, {}, {}, {}};
    const Index length = rows.shape(0);
    check_pair(a.scales, "scales", a.row_scales, "row_scales");
    if (a.scales != nullptr) {
      const TensorView scales = tensor(a.scales, "scales", Element::byte, {tokens, kAny});
      check_bytes(scales, settings.scale_bytes, "scales");
      views.scales = tensor(a.row_scales, "row_scales", Element::byte, {length, scales.shape(1)});
      mine.scales = read_raw(scales);
    }
    check_pair(a.weights, "weights", a.row_weights, "row_weights");
    if (a.weights != nullptr) {
      mine.weights =
          read_raw(tensor(a.weights, "weights", Element::fp32, {tokens, settings.top_k}));
      mine.with_weights = true;
      views.weights = weight_rows(plan, a.row_weights, "row_weights", length);
    }
    if (a.row_ids != nullptr) {
      if (!plan.flat) throw Refused("row_ids belongs to the flat layouts");
      views.ids = tensor(a.row_ids, "row_ids", Element::id, {length, settings.top_k});
    }
    views.source = optional_tensor(a.row_source, "row_source", Element::id, {length, 2});
    const bool unordered = profile.dispatch_layout == DROPLESS_DISPATCH_UNORDERED_FLAT ||
                           profile.dispatch_layout == DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR;
    if (unordered && !views.source) throw Refused("row_source is null in an unordered layout");
    mine.dtype = x.dtype(), mine.hidden = x.shape(1), mine.x = read_raw(x);
    return views;
  });
  const auto round = seat.board->meet(seat.rank, std::move(mine));

  const ExchangePlan& plan = plan_in_force(seat);
  const auto element = static_cast<std::size_t>(element_bytes(out.rows.dtype()));
  write_row_bytes(out.rows,
                  dispatch_rows(plan, seat.rank, views_of(*round, &Deposit::x),
                                at(out.rows.shape(1)) * element),
                  profile);
  if (out.scales) {
    write_row_bytes(*out.scales,
                    dispatch_rows(plan, seat.rank, views_of(*round, &Deposit::scales),
                                  at(out.scales->shape(1))),
                    profile);
  }
  if (out.weights) {
    write_row_bytes(
        *out.weights,
        dispatch_weights(plan, seat.rank, views_of(*round, &Deposit::weights), sizeof(float)),
        profile);
  }
  if (out.ids) write_row_integers(*out.ids, dispatch_ids(plan, seat.rank), profile);
  if (out.source) write_row_integers(*out.source, dispatch_sources(plan, seat.rank), profile);
}

void exchange_combine(const dropless_profile&, dropless_exchange_combine_args* args) {
  const dropless_exchange_combine_args a = completed(args, "arguments");
  const ExchangeSeat& seat = seat_of(a.exchange);
  if (is_silent(seat)) return;
  Deposit mine{.call = ExchangeCall::combine};
  const TensorView y = or_refuse(seat, [&] {
    const ExchangePlan& plan = plan_in_force(seat);
    const TensorView rows = tensor(a.rows, "rows", Element::real, {kAny, kAny});
    check_rows(rows, plan.received[at(seat.rank)], "rows");
    if (is_weighted(plan)) {
      mine.row_weights =
          read_values(tensor(a.row_weights, "row_weights", Element::fp32, {rows.shape(0)}));
    } else if (a.row_weights != nullptr) {
      throw Refused("row_weights are given to an unweighted combine");
    }
    mine.dtype = rows.dtype(), mine.hidden = rows.shape(1), mine.rows = read_values(rows);
    return tensor(a.y, "y", Element::real, {plan.tokens(seat.rank), rows.shape(1)});
  });
  const auto round = seat.board->meet(seat.rank, std::move(mine));
  const ExchangePlan& plan = plan_in_force(seat);
  const std::vector<Input> rows = inputs_of(*round, &Deposit::rows);
  const std::vector<Input> weights =
      is_weighted(plan) ? inputs_of(*round, &Deposit::row_weights) : std::vector<Input>{};
  write_values(
      y, combine(plan, seat.rank, y.shape(1), round->deposits[0].dtype, rows, weights).declared);
}

void exchange_dispatch_backward(const dropless_profile&,
                                dropless_exchange_dispatch_backward_args* args) {
  const dropless_exchange_dispatch_backward_args a = completed(args, "arguments");
  const ExchangeSeat& seat = seat_of(a.exchange);
  if (is_silent(seat)) return;
  struct Outputs {
    TensorView d_x;
    std::optional<TensorView> d_weights;
  };
  Deposit mine{.call = ExchangeCall::dispatch_backward};
  const auto out = or_refuse(seat, [&] {
    const ExchangePlan& plan = plan_in_force(seat);
    const Index tokens = plan.tokens(seat.rank);
    const TensorView d_rows = tensor(a.d_rows, "d_rows", Element::real, {kAny, kAny});
    check_rows(d_rows, plan.received[at(seat.rank)], "d_rows");
    check_pair(a.d_row_weights, "d_row_weights", a.d_weights, "d_weights");
    Outputs views{tensor(a.d_x, "d_x", Element::real, {tokens, d_rows.shape(1)}),
                  optional_tensor(a.d_weights, "d_weights", Element::fp32, {tokens, plan.top_k})};
    if (views.d_weights) {
      mine.with_weights = true;
      mine.row_weights =
          read_values(weight_rows(plan, a.d_row_weights, "d_row_weights", d_rows.shape(0)));
    }
    mine.dtype = d_rows.dtype(), mine.hidden = d_rows.shape(1), mine.rows = read_values(d_rows);
    return views;
  });
  const auto round = seat.board->meet(seat.rank, std::move(mine));
  const ExchangePlan& plan = plan_in_force(seat);
  write_values(out.d_x,
               dispatch_backward(plan, seat.rank, out.d_x.shape(1), round->deposits[0].dtype,
                                 inputs_of(*round, &Deposit::rows))
                   .declared);
  if (out.d_weights) {
    write_values(*out.d_weights, dispatch_weights_backward(
                                     plan, seat.rank, inputs_of(*round, &Deposit::row_weights)));
  }
}

void exchange_combine_backward(const dropless_profile&,
                               dropless_exchange_combine_backward_args* args) {
  const dropless_exchange_combine_backward_args a = completed(args, "arguments");
  const ExchangeSeat& seat = seat_of(a.exchange);
  if (is_silent(seat)) return;
  struct Parts {
    TensorView d_rows;
    std::optional<TensorView> d_row_weights;
    Doubles rows, row_weights;
  };
  Deposit mine{.call = ExchangeCall::combine_backward};
  const auto parts = or_refuse(seat, [&] {
    const ExchangePlan& plan = plan_in_force(seat);
    const TensorView d_y = tensor(a.d_y, "d_y", Element::real, {plan.tokens(seat.rank), kAny});
    Parts found{tensor(a.d_rows, "d_rows", Element::real, {kAny, d_y.shape(1)}), {}, {}, {}};
    const Index length = found.d_rows.shape(0);
    check_rows(found.d_rows, plan.received[at(seat.rank)], "d_rows");
    if (is_weighted(plan)) {
      found.rows = read_values(tensor(a.rows, "rows", Element::real, {length, d_y.shape(1)}));
      found.row_weights =
          read_values(tensor(a.row_weights, "row_weights", Element::fp32, {length}));
      found.d_row_weights = tensor(a.d_row_weights, "d_row_weights", Element::fp32, {length});
    } else if (a.row_weights != nullptr || a.d_row_weights != nullptr) {
      throw Refused("row_weights are given to the backward of an unweighted combine");
    }
    mine.dtype = d_y.dtype(), mine.hidden = d_y.shape(1), mine.rows = read_values(d_y);
    return found;
  });
  const auto round = seat.board->meet(seat.rank, std::move(mine));
  const ExchangePlan& plan = plan_in_force(seat);
  const CombineGradient gradient =
      combine_backward(plan, seat.rank, parts.d_rows.shape(1), inputs_of(*round, &Deposit::rows),
                       parts.rows, parts.row_weights);
  write_gradient_rows(plan, seat.rank, parts.d_rows, gradient.d_rows.value);
  if (parts.d_row_weights) {
    write_gradient_rows(plan, seat.rank, *parts.d_row_weights, gradient.d_row_weights.value);
  }
}

}  // namespace dropless::reference::contract
