// SPDX-License-Identifier: Apache-2.0
// Plan, dispatch and combine of a layer call: EXCHANGE-1 to 7 on the doubles of the reference, so
// that nothing is rounded on the way, whatever roundings the profile would allow.
#include "reference/contract/layer_exchange.h"

#include <algorithm>

#include "reference/checks.h"

namespace dropless::reference::contract {
namespace {

std::vector<std::byte> bytes_of(Input values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

Doubles doubles_of(const Bytes& bytes) {
  Doubles values(bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<std::span<const std::byte>> bytes_of_ranks(const Round& round,
                                                       std::vector<std::byte> Deposit::*member) {
  std::vector<std::span<const std::byte>> views;
  for (const Deposit& one : round.deposits) views.emplace_back(one.*member);
  return views;
}

std::vector<Input> inputs_of_ranks(const Round& round, Doubles Deposit::*member) {
  std::vector<Input> inputs;
  for (const Deposit& one : round.deposits) inputs.emplace_back(one.*member);
  return inputs;
}

// Expert-major rows as tokens with one expert each; a padding row has none (EXCHANGE-3).
std::vector<Index> experts_of_rows(const ReceivedRows& received) {
  std::vector<Index> ids(received.source.size(), -1);
  for (std::size_t e = 0; e < received.tokens_per_local_expert.size(); ++e) {
    const auto first = ids.begin() + received.offsets[e];
    std::fill(first, first + received.tokens_per_local_expert[e], static_cast<Index>(e));
  }
  return ids;
}

}  // namespace

LayerTerms layer_terms(const dropless_layer_settings& settings, Index tokens, Index hidden,
                       dropless_dtype dtype, LayerPass pass) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  for (const Index value : {hidden, Index{dtype}, Index{settings.weight_placement},
                            Index{settings.recipe}, static_cast<Index>(pass)}) {
    digest = (digest ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u;
  }
  return {digest, tokens, hidden, dtype, pass != LayerPass::forward};
}

std::shared_ptr<const Round> LayerMeeting::meet(Deposit deposit) {
  deposit.layer = terms_.digest;
  told_ = true;  // a meeting that fails fails for all
  std::shared_ptr<const Round> round = seat_->board->meet(seat_->rank, std::move(deposit));
  told_ = false;
  return round;
}

void LayerMeeting::tell(const char* why) {
  if (seat_ != nullptr && !told_) seat_->board->refuse(seat_->rank, why);
}

RoutedTokens LayerMeeting::dispatch(Indices ids, Input x, Input weights) {
  // A layer call has no step of its own: it looks for overflow every time (EXCHANGE-11).
  Deposit routing{.call = ExchangeCall::plan, .ids = {ids.begin(), ids.end()}};
  routing.last_step = true;
  const std::shared_ptr<const Round> planned = meet(std::move(routing));
  if (planned->outcome.status != DROPLESS_OK) {
    told_ = true;
    throw StatusError(planned->outcome.status,
                      "the fullest rank would receive " +
                          std::to_string(planned->outcome.report.demand) +
                          " rows, more than the capacity of " +
                          std::to_string(seat_->board->handle().capacity()));
  }

  Deposit rows{.call = ExchangeCall::dispatch};
  rows.dtype = terms_.dtype, rows.hidden = terms_.hidden, rows.with_weights = true;
  rows.x = bytes_of(x), rows.weights = bytes_of(weights);
  const std::shared_ptr<const Round> round = meet(std::move(rows));
  const Index rank = seat_->rank;
  const ReceivedRows& received = plan().received[at(rank)];
  RoutedTokens tokens;
  tokens.tokens = received.rows();
  tokens.top_k = plan().flat ? plan().top_k : 1;
  tokens.num_experts = plan().topology.slots;
  tokens.x = doubles_of(dispatch_rows(plan(), rank, bytes_of_ranks(*round, &Deposit::x),
                                      at(terms_.hidden) * sizeof(double)));
  tokens.weights = doubles_of(
      dispatch_weights(plan(), rank, bytes_of_ranks(*round, &Deposit::weights), sizeof(double)));
  tokens.ids = plan().flat ? dispatch_ids(plan(), rank) : experts_of_rows(received);
  return tokens;
}

Doubles LayerMeeting::ones() const {
  if (plan().flat || plan().profile.combine_weighting != DROPLESS_COMBINE_WEIGHTED) return {};
  return Doubles(at(plan().received[at(seat_->rank)].rows()), 1.0);
}

Doubles LayerMeeting::combine(Input rows) {
  Deposit mine{.call = ExchangeCall::combine};
  mine.dtype = terms_.dtype, mine.hidden = terms_.hidden;
  mine.rows = {rows.begin(), rows.end()};
  mine.row_weights = ones();
  const bool weighted =
      !plan().flat && plan().profile.combine_weighting == DROPLESS_COMBINE_WEIGHTED;
  const std::shared_ptr<const Round> round = meet(std::move(mine));
  told_ = !terms_.backward;  // the last meeting of a forward pass
  return reference::combine(
             plan(), seat_->rank, terms_.hidden, DROPLESS_FP32,
             inputs_of_ranks(*round, &Deposit::rows),
             weighted ? inputs_of_ranks(*round, &Deposit::row_weights) : std::vector<Input>{})
      .exact.value;
}

Doubles LayerMeeting::combine_backward(Input d_y) {
  Deposit mine{.call = ExchangeCall::combine_backward};
  mine.dtype = terms_.dtype, mine.hidden = terms_.hidden;
  mine.rows = {d_y.begin(), d_y.end()};
  const std::shared_ptr<const Round> round = meet(std::move(mine));
  // The gradient of those ones is of no interest, hence rows of zeros.
  const Doubles weights = ones(), rows(weights.size() * at(terms_.hidden), 0.0);
  return reference::combine_backward(plan(), seat_->rank, terms_.hidden,
                                     inputs_of_ranks(*round, &Deposit::rows), rows, weights)
      .d_rows.value;
}

LayerExchange::Home LayerMeeting::dispatch_backward(Input d_rows, Input d_weights) {
  Deposit mine{.call = ExchangeCall::dispatch_backward};
  mine.dtype = terms_.dtype, mine.hidden = terms_.hidden, mine.with_weights = true;
  mine.rows = {d_rows.begin(), d_rows.end()};
  mine.row_weights = {d_weights.begin(), d_weights.end()};
  const std::shared_ptr<const Round> round = meet(std::move(mine));
  told_ = true;  // the last meeting
  return {reference::dispatch_backward(plan(), seat_->rank, terms_.hidden, DROPLESS_FP32,
                                       inputs_of_ranks(*round, &Deposit::rows))
              .exact.value,
          dispatch_weights_backward(plan(), seat_->rank,
                                    inputs_of_ranks(*round, &Deposit::row_weights))};
}

}  // namespace dropless::reference::contract
