// SPDX-License-Identifier: Apache-2.0
// The way of the layer's rows between ranks. What arrives looks like tokens of this rank's own with
// this rank's experts only, so that everything behind it is the layer of one rank.
#pragma once

#include <new>
#include <optional>

#include "optimized/cpu/exchange/agreement.h"
#include "optimized/cpu/layer_state.h"

namespace dropless::cpu {

// The exchange of a layer call, or null.
[[nodiscard]] exchange::Handle* ranks_of(dropless_exchange* exchange);

// What all ranks must agree on. rows: the type of the output, or of its gradient.
enum class LayerPass { forward, backward, forward_and_backward };
[[nodiscard]] std::vector<exchange::Term> layer_terms(const LayerProblem& p, LayerPass pass,
                                                      bool codes, dropless_dtype rows);

// check() reads and checks the arguments and returns what all ranks must agree on. Throws its
// refusal, or on every rank the one of whichever rank it was (see exchange::agree).
template <class Check>
void agree_on_ranks(exchange::Handle* ranks, const Check& check) {
  if (ranks == nullptr) return static_cast<void>(check());
  std::vector<exchange::Term> terms;
  Refusal refusal{DROPLESS_OK, {}};
  try {
    terms = check();
  } catch (const Refusal& own) {
    refusal = own;
  } catch (const std::bad_alloc&) {
    refusal = {DROPLESS_OUT_OF_MEMORY, "out of host memory"};
  }
  exchange::agree(*ranks, terms, refusal);
}

// Runs the body; when it fails on this rank alone the others hear of it and do not wait. An
// overflow is known to all and leaves the handle usable (EXCHANGE-10).
template <class Body>
void run_on_ranks(exchange::Handle* ranks, const Body& body) {
  const auto give_up = [&](const Refusal& why) {
    if (ranks != nullptr) ranks->give_up(why);
  };
  try {
    body();
  } catch (const Refusal& refusal) {
    if (refusal.status != DROPLESS_OVERFLOW) give_up(refusal);
    throw;
  } catch (const std::bad_alloc&) {
    give_up({DROPLESS_OUT_OF_MEMORY, "out of host memory"});
    throw;
  } catch (const std::exception& error) {
    give_up({DROPLESS_INTERNAL_ERROR, error.what()});
    throw;
  }
}

// Whether E4M3 codes may cross instead of rows: row-wise codes of a row are the same wherever they
// are made, but column-wise ones need the rows themselves (MXFP8-1, LAYER-5), so not where a
// backward pass will need those; and not where each expert gets a row of its own weight. The
// handle must have room for scales.
[[nodiscard]] bool codes_travel(const LayerProblem& p, bool backward_follows);

// Plan of the trace's ids, and the tokens of all ranks for the experts of this one.
[[nodiscard]] Arrived dispatch_tokens(Call& call, const LayerProblem& p, const LayerTrace& trace,
                                      bool codes);
// y [T,H] from the experts of all ranks; those of this rank are in the trace.
void combine_tokens(Call& call, const LayerProblem& p, const LayerTrace& trace,
                    const dropless_tensor& y);
// Whether the exchange multiplies by the routing weights, not this rank's unpermutation.
[[nodiscard]] bool exchange_weighs(const LayerProblem& p);

// Gradient at the rows that arrived [N,H], and that of their weights [N,1] where the exchange
// weighs.
struct ArrivedGradient {
  Buffer rows, weights;
};
[[nodiscard]] ArrivedGradient combine_tokens_backward(Call& call, const LayerProblem& p,
                                                      const LayerTrace& trace,
                                                      const dropless_tensor& d_y);
// d_rows [N,H] and d_row_weights [N,K'] home to d_x [T,H] and d_weights [T,K].
void dispatch_tokens_backward(Call& call, const LayerProblem& p, const Buffer& d_rows,
                              const Buffer& d_row_weights, const Buffer& d_x,
                              const Buffer& d_weights);

}  // namespace dropless::cpu
