// SPDX-License-Identifier: Apache-2.0
// A layer call over the ranks of an open exchange: its rows go over the board where the ranks meet.
#pragma once

#include "reference/contract/exchange_calls.h"
#include "reference/layer.h"

namespace dropless::reference::contract {

// What all ranks have to agree on, as one number, and what the board needs to know of the rows.
struct LayerTerms {
  std::uint64_t digest;
  Index tokens, hidden;
  dropless_dtype dtype;  // of x
  bool backward;
};
enum class LayerPass { forward, backward, forward_and_backward };
LayerTerms layer_terms(const dropless_layer_settings& settings, Index tokens, Index hidden,
                       dropless_dtype dtype, LayerPass pass);

// One rank's part of one layer call; without an exchange it does nothing. Whatever this rank throws
// between two meetings is told to the others, so that none of them waits for it; the handle stays
// usable (a layer call plans anew).
class LayerMeeting final : public LayerExchange {
 public:
  // Throws Refused unless `exchange` is null or open.
  explicit LayerMeeting(dropless_exchange* exchange)
      : seat_(exchange == nullptr ? nullptr : &seat_of(exchange)) {}

  // Null without an exchange.
  [[nodiscard]] const ExchangeSettings* settings() const {
    return seat_ == nullptr ? nullptr : &seat_->board->settings();
  }
  [[nodiscard]] const ExchangeBoard* board() const {
    return seat_ == nullptr ? nullptr : seat_->board.get();
  }
  // Plans of the handle so far: which layer call its routing belongs to.
  [[nodiscard]] Index plans() const { return seat_ == nullptr ? 0 : seat_->board->plans(); }
  [[nodiscard]] LayerExchange* begin(const LayerTerms& terms) {
    terms_ = terms;
    return seat_ == nullptr ? nullptr : this;
  }

  template <typename Body>
  void run(const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      tell(error.what());
      throw;
    }
  }

  RoutedTokens dispatch(Indices ids, Input x, Input weights) override;
  Doubles combine(Input rows) override;
  Doubles combine_backward(Input d_y) override;
  Home dispatch_backward(Input d_rows, Input d_weights) override;

 private:
  std::shared_ptr<const Round> meet(Deposit deposit);
  [[nodiscard]] const ExchangePlan& plan() const { return seat_->board->handle().plan_in_force(); }
  // Weights of 1 for the rows where the profile's combine is weighted: the layer weighs its rows
  // itself, wherever its placement says.
  [[nodiscard]] Doubles ones() const;
  void tell(const char* why);

  ExchangeSeat* seat_;
  LayerTerms terms_{};
  bool told_ = false;  // the others know of the trouble, or need nothing more from this rank
};

}  // namespace dropless::reference::contract
