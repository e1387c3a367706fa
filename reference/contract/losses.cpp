// SPDX-License-Identifier: Apache-2.0
// Balance loss, z-loss and cross-entropy behind the contract.
#include "reference/losses.h"

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/operations.h"
#include "reference/contract/settings.h"
#include "reference/contract/tensor.h"
#include "reference/routing_checks.h"

namespace dropless::reference::contract {
namespace {

// The inputs of the balance loss, checked and read. accumulated_* hold what the call hands in.
struct BalanceCall {
  dropless_route_settings settings;
  double coeff;
  int scope;
  Index tokens;
  Doubles logits;
  std::vector<Index> ids, boundaries, accumulated;
  std::vector<std::uint8_t> mask;
  Index accumulated_tokens = 0;
  std::optional<TensorView> accumulated_view, accumulated_tokens_view;

  BalanceCall(const dropless_profile& profile, const dropless_balance_loss_args& a)
      : settings(route_settings(a.settings)), coeff(a.coeff), scope(a.scope) {
    check_route_selection(settings, profile, false);
    const Index num_experts = settings.num_experts;
    const TensorView logits_view = tensor(a.logits, "logits", Element::real, {kAny, num_experts});
    tokens = logits_view.shape(0);
    logits = read_values(logits_view);
    ids = read_integers(tensor(a.ids, "ids", Element::id, {tokens, settings.top_k}));
    mask = read_bytes(optional_tensor(a.token_mask, "token_mask", Element::u8, {tokens}));
    if (scope == DROPLESS_SCOPE_SEQUENCE) {
      boundaries =
          read_integers(tensor(a.sequence_boundaries, "sequence_boundaries", Element::i64, {kAny}));
    }
    if (scope == DROPLESS_SCOPE_GLOBAL) {
      accumulated_view =
          tensor(a.accumulated_counts, "accumulated_counts", Element::i64, {num_experts});
      accumulated_tokens_view =
          tensor(a.accumulated_tokens, "accumulated_tokens", Element::i64, {1});
      accumulated = read_integers(accumulated_view);
      accumulated_tokens = accumulated_tokens_view->load_integer(0);
    }
  }

  [[nodiscard]] BalanceInput input() const {
    return {tokens, logits, ids, mask, boundaries, accumulated, accumulated_tokens};
  }
  [[nodiscard]] Index unmasked_tokens() const {
    Index count = tokens;
    for (const std::uint8_t bit : mask) count -= bit == 0 ? 1 : 0;
    return count;
  }
};

double scalar(const dropless_tensor* argument, const char* name) {
  return tensor(argument, name, Element::fp32, {1}).load(0);
}

}  // namespace

void balance_loss_forward(const dropless_profile& profile, dropless_balance_loss_args* args) {
  const dropless_balance_loss_args a = completed(args, "arguments");
  BalanceCall call(profile, a);
  const TensorView loss = tensor(a.loss, "loss", Element::fp32, {1});

  const double value =
      balance_loss(call.settings, profile, call.coeff, call.scope, call.input()).value;
  if (call.scope == DROPLESS_SCOPE_GLOBAL) {
    const std::vector<Index> counts = balance_counts(call.settings, profile, call.input());
    for (std::size_t e = 0; e < counts.size(); ++e) call.accumulated[e] += counts[e];
    write_integers(*call.accumulated_view, call.accumulated);
    call.accumulated_tokens_view->store_integer(call.accumulated_tokens + call.unmasked_tokens(),
                                                0);
  }
  loss.store(value, 0);
}

void balance_loss_backward(const dropless_profile& profile, dropless_balance_loss_args* args) {
  const dropless_balance_loss_args a = completed(args, "arguments");
  BalanceCall call(profile, a);
  const double d_loss = scalar(a.d_loss, "d_loss");
  const TensorView d_logits =
      tensor(a.d_logits, "d_logits", Element::fp32, {call.tokens, call.settings.num_experts});

  if (call.scope == DROPLESS_SCOPE_GLOBAL) {
    // The call hands in the sums after this micro-batch; the formula wants those before.
    const std::vector<Index> counts = balance_counts(call.settings, profile, call.input());
    for (std::size_t e = 0; e < counts.size(); ++e) call.accumulated[e] -= counts[e];
    call.accumulated_tokens -= call.unmasked_tokens();
  }
  const Gauged gradient = reference::balance_loss_backward(call.settings, profile, call.coeff,
                                                           call.scope, call.input(), d_loss);
  write_values(d_logits, gradient.value);
}

namespace {

struct ZCall {
  Index tokens, num_experts;
  Doubles logits;
  std::vector<std::uint8_t> mask;

  explicit ZCall(const dropless_z_loss_args& a) {
    const TensorView view = tensor(a.logits, "logits", Element::real, {kAny, kAny});
    tokens = view.shape(0);
    num_experts = view.shape(1);
    if (tokens > 0 && num_experts == 0) throw Refused("logits has tokens but no experts");
    logits = read_values(view);
    mask = read_bytes(optional_tensor(a.token_mask, "token_mask", Element::u8, {tokens}));
  }
};

struct CrossEntropyCall {
  Index tokens, vocabulary;
  Doubles logits;
  std::vector<Index> labels;

  explicit CrossEntropyCall(const dropless_cross_entropy_args& a) {
    const TensorView view = tensor(a.logits, "logits", Element::real, {kAny, kAny});
    tokens = view.shape(0);
    vocabulary = view.shape(1);
    logits = read_values(view);
    labels = read_integers(tensor(a.labels, "labels", Element::id, {tokens}));
  }
};

}  // namespace

void z_loss_forward(const dropless_profile&, dropless_z_loss_args* args) {
  const dropless_z_loss_args a = completed(args, "arguments");
  const ZCall call(a);
  const TensorView loss = tensor(a.loss, "loss", Element::fp32, {1});
  loss.store(z_loss(a.coeff, call.num_experts, call.logits, call.mask).value, 0);
}

void z_loss_backward(const dropless_profile&, dropless_z_loss_args* args) {
  const dropless_z_loss_args a = completed(args, "arguments");
  const ZCall call(a);
  const double d_loss = scalar(a.d_loss, "d_loss");
  const TensorView d_logits =
      tensor(a.d_logits, "d_logits", Element::fp32, {call.tokens, call.num_experts});
  write_values(
      d_logits,
      reference::z_loss_backward(a.coeff, call.num_experts, call.logits, call.mask, d_loss).value);
}

void cross_entropy_forward(const dropless_profile&, dropless_cross_entropy_args* args) {
  const dropless_cross_entropy_args a = completed(args, "arguments");
  const CrossEntropyCall call(a);
  const TensorView loss = tensor(a.loss, "loss", Element::fp32, {1});
  loss.store(cross_entropy(call.vocabulary, call.logits, call.labels).value, 0);
}

void cross_entropy_backward(const dropless_profile&, dropless_cross_entropy_args* args) {
  const dropless_cross_entropy_args a = completed(args, "arguments");
  const CrossEntropyCall call(a);
  const double d_loss = scalar(a.d_loss, "d_loss");
  const TensorView d_logits =
      tensor(a.d_logits, "d_logits", Element::fp32, {call.tokens, call.vocabulary});
  write_values(
      d_logits,
      reference::cross_entropy_backward(call.vocabulary, call.logits, call.labels, d_loss).value);
}

}  // namespace dropless::reference::contract
