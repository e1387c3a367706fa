// SPDX-License-Identifier: Apache-2.0
// Calls, expectations and judgement of the loss cases.
#include "conformance/cases/losses/setup.h"

#include <algorithm>
#include <cmath>

#include "tolerances/bounds.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// The part of a call that all losses share: scalars, gradient, and how to perform it.
template <class Args, class Entry>
LossCall finish(CaseRun& run, Args args, Direction direction, const char* operation, Entry entry,
                double d_loss, Shape shape, const RouteStyle& style) {
  Buffers& buffers = run.buffers();
  LossCall call;
  if (direction == Direction::forward) {
    call.loss = &buffers.output(style.prefix + "loss", DROPLESS_FP32, {1});
    args.loss = call.loss->tensor();
  } else {
    run.judge().require(d_loss != 1, "a loss whose cotangent is left out has another gradient");
    const std::vector<double> cotangent = {d_loss};
    args.d_loss = buffers.input(style.prefix + "d_loss", DROPLESS_FP32, {1}, cotangent).tensor();
    call.d_logits =
        &buffers.output(style.prefix + "d_logits", DROPLESS_FP32, std::move(shape), style.outputs);
    args.d_logits = call.d_logits->tensor();
  }
  call.perform_with = [&run, args, operation, entry](int threads) mutable {
    if (threads > 0) {
      run.perform_with_threads(threads, operation, entry, args);
    } else {
      run.perform(operation, entry, args);
    }
  };
  call.refused = [&run, args, operation, entry](std::string_view why) mutable {
    run.refused("GENERAL-3", why, operation, entry, args);
  };
  return call;
}

const dropless_tensor* logits_input(CaseRun& run, const RoutingData& data,
                                    const RouteStyle& style) {
  return run.buffers()
      .input(style.prefix + "logits", data.dtype, {data.tokens, data.experts()}, data.logits,
             style.inputs)
      .tensor();
}

const dropless_tensor* mask_input(CaseRun& run, const RoutingData& data, const RouteStyle& style) {
  if (data.mask.empty()) return nullptr;
  return run.buffers()
      .input(style.prefix + "token_mask", DROPLESS_U8, {data.tokens},
             std::span<const std::uint8_t>(data.mask))
      .tensor();
}

double row_maximum(std::span<const double> row) {
  return *std::max_element(row.begin(), row.end());
}

// Largest finite spread over all experts of the tokens in scope.
double largest_spread(const RoutingData& data) {
  double largest = 0;
  for (Index t = 0; t < data.tokens; ++t) {
    if (data.is_masked(t)) continue;
    const std::span<const double> row = data.row(t);
    const double from = is_softmax(data.settings) ? row_maximum(row) : 0;
    for (const double l : row) {
      const double spread = std::abs(l - from);
      if (std::isfinite(spread)) largest = std::max(largest, spread);
    }
  }
  return largest;
}

double log_sum_exp(std::span<const double> row) {
  const double largest = row_maximum(row);
  double sum = 0;
  for (const double l : row) sum += std::exp(l - largest);
  return largest + std::log(sum);
}

}  // namespace

Parameter direction_parameter() {
  return word_parameter("direction", {"forward", "backward"}, "what is called");
}

Direction direction_of(const CaseRun& run) {
  return run.word("direction") == "forward" ? Direction::forward : Direction::backward;
}

std::vector<bool> unmasked_rows(const RoutingData& data) {
  std::vector<bool> rows(at(data.tokens));
  for (Index t = 0; t < data.tokens; ++t) rows[at(t)] = !data.is_masked(t);
  return rows;
}

Index count_of(const std::vector<bool>& rows) {
  return static_cast<Index>(std::count(rows.begin(), rows.end(), true));
}

reference::BalanceInput reference_input(const BalanceData& data) {
  reference::BalanceInput input;
  input.tokens = data.routing.tokens;
  input.logits = data.routing.logits;
  input.ids = data.ids;
  input.token_mask = data.routing.mask;
  input.sequence_boundaries = data.boundaries;
  input.accumulated_counts = data.earlier_counts;
  input.accumulated_tokens = data.earlier_tokens;
  return input;
}

ExpectedLoss expected_loss(const CaseRun& run, const BalanceData& data) {
  const dropless_route_settings& settings = data.routing.settings;
  const reference::BalanceInput input = reference_input(data);
  const double spread = largest_spread(data.routing);
  const reference::Loss loss =
      reference::balance_loss(settings, run.profile(), data.coeff, data.scope, input);
  const reference::Gauged gradient = reference::balance_loss_backward(
      settings, run.profile(), data.coeff, data.scope, input, data.d_loss);
  ExpectedLoss out;
  out.value = loss.value;
  out.error =
      tolerances::balance_loss(settings, run.profile(), data.routing.tokens, loss.gauge, spread);
  out.gradient = gradient.value;
  for (std::size_t i = 0; i < gradient.gauge.size(); ++i) {
    out.gradient_errors.push_back(tolerances::balance_loss_gradient(
        settings, run.profile(), gradient.gauge[i], spread, data.routing.logits[i]));
  }
  return out;
}

ExpectedLoss expected_loss(const CaseRun& run, const ZData& data) {
  const RoutingData& routing = data.routing;
  const Index experts = routing.experts();
  const reference::Loss loss = reference::z_loss(data.coeff, experts, routing.logits, routing.mask);
  const reference::Gauged gradient =
      reference::z_loss_backward(data.coeff, experts, routing.logits, routing.mask, data.d_loss);
  const Index in_scope = count_of(unmasked_rows(routing));
  const double factor =
      std::abs(data.d_loss * data.coeff) * 2 / static_cast<double>(std::max<Index>(in_scope, 1));
  ExpectedLoss out;
  double largest = 0;
  out.gradient_errors.assign(gradient.value.size(), 0);
  for (Index t = 0; t < routing.tokens; ++t) {
    if (routing.is_masked(t)) continue;
    const std::span<const double> row = routing.row(t);
    largest = std::max(largest, std::abs(log_sum_exp(row)));
    for (Index e = 0; e < experts; ++e) {
      const std::size_t i = at(t * experts + e);
      out.gradient_errors[i] = tolerances::z_loss_gradient(
          run.profile(), experts, gradient.gauge[i], row_maximum(row) - routing.logits[i], factor);
    }
  }
  out.value = loss.value;
  out.error = tolerances::z_loss(run.profile(), std::max<Index>(in_scope, 1), experts, data.coeff,
                                 loss.gauge, largest);
  out.gradient = gradient.value;
  return out;
}

ExpectedLoss expected_loss(const CaseRun& run, const CrossEntropyData& data) {
  const Index width = data.vocabulary;
  const reference::Loss loss = reference::cross_entropy(width, data.logits, data.labels);
  const reference::Gauged gradient =
      reference::cross_entropy_backward(width, data.logits, data.labels, data.d_loss);
  const auto labelled =
      std::count_if(data.labels.begin(), data.labels.end(), [](Index label) { return label >= 0; });
  const double factor = std::abs(data.d_loss) / static_cast<double>(std::max<Index>(labelled, 1));
  ExpectedLoss out;
  out.value = loss.value;
  out.error = tolerances::cross_entropy(run.profile(), labelled, width, loss.gauge);
  out.gradient = gradient.value;
  for (Index t = 0; t < data.tokens; ++t) {
    const std::span<const double> row = std::span(data.logits).subspan(at(t * width), at(width));
    const double largest = row_maximum(row);
    for (std::size_t v = 0; v < row.size(); ++v) {
      out.gradient_errors.push_back(tolerances::cross_entropy_gradient(
          run.profile(), width, gradient.gauge[at(t * width) + v], largest - row[v], factor));
    }
  }
  return out;
}

LossCall loss_call(CaseRun& run, const BalanceData& data, Direction direction,
                   const RouteStyle& style) {
  Buffers& buffers = run.buffers();
  const RoutingData& routing = data.routing;
  const bool forward = direction == Direction::forward;
  auto args = make_args<dropless_balance_loss_args>();
  args.settings = &routing.settings;
  args.coeff = data.coeff;
  args.scope = data.scope;
  args.logits = logits_input(run, routing, style);
  args.token_mask = mask_input(run, routing, style);
  args.ids = buffers
                 .input(style.prefix + "ids", style.ids_dtype, {routing.tokens, routing.top_k()},
                        data.ids, style.inputs)
                 .tensor();
  if (data.scope == DROPLESS_SCOPE_SEQUENCE) {
    args.sequence_boundaries =
        buffers
            .input(style.prefix + "sequence_boundaries", DROPLESS_I64,
                   {static_cast<Index>(data.boundaries.size())}, data.boundaries)
            .tensor();
  }
  Buffer *counts = nullptr, *tokens = nullptr;
  if (data.scope == DROPLESS_SCOPE_GLOBAL) {
    // Forward adds this micro-batch in place; backward takes the sums after that (ROUTING-14f).
    std::vector<Index> sums = data.earlier_counts;
    std::vector<Index> total = {data.earlier_tokens};
    const auto place = [&](const char* name, const std::vector<Index>& values) {
      const std::string label = style.prefix + name;
      const Shape shape = {static_cast<Index>(values.size())};
      return forward ? &buffers.in_out(label, DROPLESS_I64, shape, values)
                     : &buffers.input(label, DROPLESS_I64, shape, values);
    };
    if (!forward) {
      const std::vector<Index> added =
          reference::balance_counts(routing.settings, run.profile(), reference_input(data));
      for (std::size_t e = 0; e < sums.size(); ++e) sums[e] += added[e];
      total[0] += count_of(unmasked_rows(routing));
    }
    counts = place("accumulated_counts", sums);
    tokens = place("accumulated_tokens", total);
    args.accumulated_counts = counts->tensor();
    args.accumulated_tokens = tokens->tensor();
  }
  const dropless_implementation& implementation = run.implementation();
  LossCall call =
      finish(run, args, direction, forward ? "balance_loss_forward" : "balance_loss_backward",
             forward ? implementation.balance_loss_forward : implementation.balance_loss_backward,
             data.d_loss, {routing.tokens, routing.experts()}, style);
  call.accumulated_counts = counts;
  call.accumulated_tokens = tokens;
  return call;
}

LossCall loss_call(CaseRun& run, const ZData& data, Direction direction, const RouteStyle& style) {
  const bool forward = direction == Direction::forward;
  auto args = make_args<dropless_z_loss_args>();
  args.coeff = data.coeff;
  args.logits = logits_input(run, data.routing, style);
  args.token_mask = mask_input(run, data.routing, style);
  const dropless_implementation& implementation = run.implementation();
  return finish(run, args, direction, forward ? "z_loss_forward" : "z_loss_backward",
                forward ? implementation.z_loss_forward : implementation.z_loss_backward,
                data.d_loss, {data.routing.tokens, data.routing.experts()}, style);
}

LossCall loss_call(CaseRun& run, const CrossEntropyData& data, Direction direction,
                   const RouteStyle& style) {
  Buffers& buffers = run.buffers();
  const bool forward = direction == Direction::forward;
  auto args = make_args<dropless_cross_entropy_args>();
  args.logits = buffers
                    .input(style.prefix + "logits", data.dtype, {data.tokens, data.vocabulary},
                           data.logits, style.inputs)
                    .tensor();
  args.labels =
      buffers.input(style.prefix + "labels", data.labels_dtype, {data.tokens}, data.labels)
          .tensor();
  const dropless_implementation& implementation = run.implementation();
  return finish(
      run, args, direction, forward ? "cross_entropy_forward" : "cross_entropy_backward",
      forward ? implementation.cross_entropy_forward : implementation.cross_entropy_backward,
      data.d_loss, {data.tokens, data.vocabulary}, style);
}

void judge_loss(CaseRun& run, const LossCall& call, const ExpectedLoss& expected,
                const std::vector<bool>& rows, const LossClauses& clauses) {
  if (call.loss != nullptr) {
    run.judge().bounded(clauses.value, "loss", *call.loss, std::vector{expected.value},
                        std::vector{expected.error});
    return;
  }
  const Index columns = call.d_logits->shape()[1];
  run.judge().bounded(clauses.gradient, "d_logits", *call.d_logits, expected.gradient,
                      expected.gradient_errors, spread_rows(rows, columns));
  std::vector<bool> others = rows;
  others.flip();
  run.judge().exact(clauses.rest, "d_logits of tokens out of scope", *call.d_logits,
                    std::vector<double>(expected.gradient.size(), 0.0),
                    spread_rows(others, columns));
}

}  // namespace dropless::conformance
