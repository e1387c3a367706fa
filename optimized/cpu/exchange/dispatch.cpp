// SPDX-License-Identifier: Apache-2.0
// Rows to the ranks of their experts: dispatch, and the backward of combine. A token crosses to a
// rank once, with the weights of its pairs there, and is spread over its rows by the receiver
// (EXCHANGE-1 to 5, 7).
#include <cstring>

#include "optimized/cpu/exchange/operations.h"
#include "optimized/cpu/exchange/rows.h"
#include "optimized/cpu/exchange/stream.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu::exchange {
namespace {

constexpr Index piece = 512;  // columns at a time

struct Delivery {
  Tensor rows, scales, weights, ids, source;  // those of a dispatch that are wanted
  bool streams = false;                       // see stream.h
};

// Weights of the pairs of a link, in the order of the pairs.
Section gather_weights(const Link& link, const Tensor& weights, Bytes& memory) {
  std::uint32_t* to = memory.reserve_as<std::uint32_t>(static_cast<Index>(link.pairs.size()));
  for (Index i = 0; i < link.size(); ++i) {
    for (Index p = link.pairs_begin(i); p < link.pairs_end(i); ++p) {
      to[p] = weights.as<std::uint32_t>(link.tokens[at(i)].token, link.pairs[at(p)].k);
    }
  }
  return {reinterpret_cast<const std::byte*>(to), static_cast<Index>(link.pairs.size()), 4, 4};
}

// One token into its row (flat) or rows (expert-major).
void deliver_token(const Handle& handle, Index source, Index i, const Round::Sections& sections,
                   const Delivery& to) {
  const Link& link = handle.plan.received[at(source)];
  const LinkRows& rows = handle.plan.rows[at(source)];
  const bool expert_major = handle.group.choices.expert_major;
  const auto* weights = reinterpret_cast<const std::uint32_t*>(sections[2].data);
  const Index first = link.pairs_begin(i), end = link.pairs_end(i);
  const auto store_token = [&](Index row) {
    if (to.streams) {
      stream_copy(to.rows.at(row), sections[0].row(i), to.rows.shape[1] * to.rows.element);
    } else {
      store_row(sections[0].row(i), to.rows, row);
    }
    if (to.scales) store_row(sections[1].row(i), to.scales, row);
    if (to.source) {
      to.source.as<std::int32_t>(row, 0) = static_cast<std::int32_t>(source);
      to.source.as<std::int32_t>(row, 1) = link.tokens[at(i)].token;
    }
  };
  if (expert_major) {
    for (Index p = first; p < end; ++p) {
      store_token(rows.pair[at(p)]);
      if (to.weights) to.weights.as<std::uint32_t>(rows.pair[at(p)]) = weights[p];
    }
    return;
  }
  const Index row = rows.first + i;
  store_token(row);
  for (Index k = 0; k < handle.plan.top_k; ++k) {
    if (to.weights) to.weights.as<std::uint32_t>(row, k) = 0;
    if (to.ids) to.ids.as<std::int32_t>(row, k) = -1;
  }
  for (Index p = first; p < end; ++p) {
    const Index column = rows.column[at(p)];
    if (to.weights) to.weights.as<std::uint32_t>(row, column) = weights[p];
    if (to.ids) to.ids.as<std::int32_t>(row, column) = link.pairs[at(p)].slot;
  }
}

Delivery read_delivery(const Handle& handle, const dropless_exchange_dispatch_args& args,
                       const Tensor& x, const Tensor& scales) {
  const bool expert_major = handle.group.choices.expert_major;
  const Index top_k = handle.plan.top_k;
  Delivery to;
  to.rows = tensor(args.rows, "rows", {x.dtype}, {any, x.shape[1]});
  check_rows(handle, to.rows, "rows");
  to.streams = to.rows.inner_stride() == 1 &&
               handle.plan.zones.rows() * to.rows.shape[1] * to.rows.element >= streaming_bytes;
  const Index most = to.rows.shape[0];
  to.scales = optional_tensor(args.row_scales, "row_scales", {DROPLESS_U8, DROPLESS_E8M0},
                              {most, scales.given ? scales.shape[1] : any});
  to.weights =
      expert_major
          ? optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {most})
          : optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {most, top_k});
  refuse_if(expert_major && args.row_ids != nullptr, "row_ids: only in the flat layout");
  to.ids = optional_tensor(args.row_ids, "row_ids", {DROPLESS_I32}, {most, top_k});
  to.source = optional_tensor(args.row_source, "row_source", {DROPLESS_I32}, {most, 2});
  return to;
}

// Tokens of all sources in one sequence, cut into tasks.
template <class Body>
void for_received(int threads, const Plan& plan, Index token_bytes, const Body& body) {
  for (Index r = 0; r < static_cast<Index>(plan.received.size()); ++r) {
    parallel_ranges(threads, plan.received[at(r)].size(), rows_per_task(token_bytes),
                    [&](Index begin, Index end) { body(r, begin, end); });
  }
}

// Offers the rows (and companions) of every token to its ranks and opens what comes for this one.
template <class Extra>
std::vector<Round::Sections> exchange_rows(Round& round, Handle& handle, const RowSource& x,
                                           Index row_bytes, const Extra& extra) {
  const Plan& plan = handle.plan;
  const Index ranks = handle.ranks(), own = handle.group.rank;
  for (Index step = 0; step < ranks; ++step) {
    const Index r = (own + step) % ranks;
    if (plan.sent[at(r)].empty()) continue;
    Round::Sections sections = {x.chosen(plan.sent[at(r)].tokens), {}, {}};
    extra.add(sections, r);
    round.offer(r, sections);
  }
  for (Index r = 0; r < ranks; ++r) {
    const Link& link = plan.received[at(r)];
    if (!link.empty()) round.await(r, extra.expected(link, sized(link.size(), row_bytes)));
  }
  std::vector<Round::Sections> all(at(ranks));
  for (Index r = 0; r < ranks; ++r) {
    if (!plan.received[at(r)].empty()) all[at(r)] = round.open(r);
  }
  return all;
}

struct DispatchExtra {
  Handle& handle;
  const Tensor& scales;
  const Tensor& weights;
  const RowSource* scale_rows;

  void add(Round::Sections& sections, Index r) const {
    const Link& link = handle.plan.sent[at(r)];
    if (scale_rows != nullptr) sections[1] = scale_rows->chosen(link.tokens);
    if (weights) sections[2] = gather_weights(link, weights, handle.scratch_of(r, 0));
  }
  [[nodiscard]] Round::Sections expected(const Link& link, const Section& rows) const {
    const Index pairs = static_cast<Index>(link.pairs.size());
    return {rows, sized(scales ? link.size() : 0, scales ? scales.shape[1] : 0),
            sized(weights ? pairs : 0, 4)};
  }
};

struct NoExtra {
  void add(Round::Sections&, Index) const {}
  [[nodiscard]] Round::Sections expected(const Link&, const Section& rows) const {
    return {rows, {}, {}};
  }
};

// d_row = w * d_y and d_w = dot(d_y, row), or the unweighted copy (EXCHANGE-7).
DROPLESS_INLINE void gradient_row(const std::byte* d_y, dropless_dtype dtype, Index row,
                                  const Tensor& rows, const Tensor& weights, const Tensor& d_rows,
                                  const Tensor& d_weights) {
  float gradient[piece], values[piece];
  constexpr Index lanes = 16;
  float partial[lanes] = {};
  const Index hidden = d_rows.shape[1], element = dtype == DROPLESS_FP32 ? 4 : 2;
  for (Index column = 0; column < hidden; column += piece) {
    const Index n = std::min(piece, hidden - column);
    load_run(d_y + column * element, dtype, 1, n, gradient);
    if (weights) {
      load_run(rows.at(row, column), rows.dtype, rows.inner_stride(), n, values);
      for (Index i = 0; i < n; ++i) partial[i % lanes] += gradient[i] * values[i];
      const float weight = weights.as<float>(row);
      for (Index i = 0; i < n; ++i) gradient[i] *= weight;
    }
    store_run(gradient, n, d_rows.at(row, column), d_rows.dtype, d_rows.inner_stride());
  }
  if (!d_weights) return;
  float sum = 0;
  for (const float each : partial) sum += each;
  d_weights.as<float>(row) = sum;
}

}  // namespace

void dispatch(Call& call, const dropless_exchange_dispatch_args& args) {
  Handle& handle = handle_of(args.exchange);
  const bool moves = may_move(handle);
  const Group& g = handle.group;
  const Plan& plan = handle.plan;
  const Tensor x = tensor(args.x, "x", any_dtype, {plan.tokens, any});
  const Index row_bytes = x.shape[1] * x.element;
  refuse_if(row_bytes > g.row_bytes, "x: rows of more bytes than the exchange was opened for");
  const Tensor scales =
      optional_tensor(args.scales, "scales", {DROPLESS_U8, DROPLESS_E8M0}, {plan.tokens, any});
  refuse_if(scales.given && scales.shape[1] > g.scale_bytes,
            "scales: more bytes than the exchange was opened for");
  const Tensor weights =
      optional_tensor(args.weights, "weights", {DROPLESS_FP32}, {plan.tokens, plan.top_k});
  refuse_if(scales.given != (args.row_scales != nullptr), "scales and row_scales: only one given");
  refuse_if(weights.given != (args.row_weights != nullptr),
            "weights and row_weights: only one given");
  call.ran(path_text(handle));
  if (!moves) return;
  const Delivery to = read_delivery(handle, args, x, scales);

  const RowSource x_rows(x, handle.scratch_of(g.rank, 1));
  const RowSource scale_rows =
      scales ? RowSource(scales, handle.scratch_of(g.rank, 2)) : RowSource(x_rows);
  const DispatchExtra extra{handle, scales, weights, scales ? &scale_rows : nullptr};
  Round(handle, Phase::dispatch).run([&](Round& round) {
    const auto sections = exchange_rows(round, handle, x_rows, row_bytes, extra);
    for_received(handle.threads(call.threads()), plan, row_bytes,
                 [&](Index r, Index begin, Index end) {
                   for (Index i = begin; i < end; ++i) {
                     deliver_token(handle, r, i, sections[at(r)], to);
                   }
                   if (to.streams) finish_streaming();
                 });
    zero_unused(handle, to.rows);
    if (to.scales) zero_unused(handle, to.scales);
    if (to.weights) zero_unused(handle, to.weights);
    if (to.ids) fill_unused(handle, to.ids, -1);
    if (to.source) fill_unused(handle, to.source, -1);
  });
}

void combine_backward(Call& call, const dropless_exchange_combine_backward_args& args) {
  Handle& handle = handle_of(args.exchange);
  const bool moves = may_move(handle);
  const Plan& plan = handle.plan;
  const bool weighted = handle.group.choices.weighted;
  const Tensor d_y = tensor(args.d_y, "d_y", floats, {plan.tokens, any});
  const Tensor d_rows = tensor(args.d_rows, "d_rows", floats, {any, d_y.shape[1]});
  const Index most = d_rows.shape[0];
  if (!weighted) {
    refuse_if(args.row_weights != nullptr || args.d_row_weights != nullptr,
              "row_weights: only where combine is weighted");
  }
  const Tensor rows = weighted ? tensor(args.rows, "rows", floats, {most, d_y.shape[1]}) : Tensor{};
  const Tensor weights =
      weighted ? tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {most}) : Tensor{};
  const Tensor d_weights =
      weighted ? optional_tensor(args.d_row_weights, "d_row_weights", {DROPLESS_FP32}, {most})
               : Tensor{};
  call.ran(path_text(handle));
  if (!moves) return;
  check_rows(handle, d_rows, "d_rows");

  const Index row_bytes = d_y.shape[1] * d_y.element;
  const RowSource gradients(d_y, handle.scratch_of(handle.group.rank, 1));
  const bool copies = !weighted && d_y.dtype == d_rows.dtype;
  const auto deliver = [&](const std::byte* from, Index row) DROPLESS_INLINE_LAMBDA {
    if (copies) {
      store_row(from, d_rows, row);
    } else {
      gradient_row(from, d_y.dtype, row, rows, weights, d_rows, d_weights);
    }
  };
  Round(handle, Phase::combine_backward).run([&](Round& round) {
    const auto sections = exchange_rows(round, handle, gradients, row_bytes, NoExtra{});
    for_received(handle.threads(call.threads()), plan, row_bytes,
                 [&](Index r, Index begin, Index end) {
                   const Link& link = plan.received[at(r)];
                   const LinkRows& to = plan.rows[at(r)];
                   with_simd([&]() DROPLESS_INLINE_LAMBDA {
                     for (Index i = begin; i < end; ++i) {
                       const std::byte* from = sections[at(r)][0].row(i);
                       if (!handle.group.choices.expert_major) {
                         deliver(from, to.first + i);
                         continue;
                       }
                       for (Index p = link.pairs_begin(i); p < link.pairs_end(i); ++p) {
                         deliver(from, to.pair[at(p)]);
                       }
                     }
                   });
                 });
    zero_unused(handle, d_rows);
    if (d_weights) zero_unused(handle, d_weights);
  });
  call.ran(path_text(handle));
}

}  // namespace dropless::cpu::exchange
