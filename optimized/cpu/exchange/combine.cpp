// SPDX-License-Identifier: Apache-2.0
// Rows back to their tokens: combine, and the backward of dispatch (EXCHANGE-6, 7). A rank returns
// one row for every token that it got: the caller's own (flat), or the sum of the token's rows in k
// order (expert-major). The token's rank adds them up in ascending rank order, so that every
// transport gives the same bits.
#include "optimized/cpu/exchange/operations.h"
#include "optimized/cpu/exchange/rows.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu::exchange {
namespace {

constexpr Index piece = 512;  // columns at a time

DROPLESS_INLINE void add(const std::byte* from, dropless_dtype dtype, Index stride, Index n,
                         const float* weight, float* sums) {
  float values[piece];
  load_run(from, dtype, stride, n, values);
  if (weight != nullptr) {
    for (Index i = 0; i < n; ++i) sums[i] += *weight * values[i];
  } else {
    for (Index i = 0; i < n; ++i) sums[i] += values[i];
  }
}

// A rounding before the final one: to the type of the rows.
DROPLESS_INLINE void round_to(dropless_dtype dtype, Index n, float* sums) {
  if (dtype != DROPLESS_BF16) return;
  for (Index i = 0; i < n; ++i) sums[i] = widen_bf16(round_bf16(sums[i]));
}

struct Returning {
  Handle& handle;
  Tensor rows, weights;             // at the experts; weights [N_max] where combine is weighted
  Tensor y;                         // at home
  Tensor d_row_weights, d_weights;  // dispatch_backward
  int threads;

  // Type of the rows that travel: sums are rounded on the way only where that is declared.
  [[nodiscard]] dropless_dtype wire() const {
    const Choices& c = handle.group.choices;
    const bool rounded = !c.expert_major || c.rounding == DROPLESS_COMBINE_ROUNDS_PER_RANK;
    return rounded ? rows.dtype : DROPLESS_FP32;
  }
  [[nodiscard]] Index wire_bytes() const { return y.shape[1] * (wire() == DROPLESS_FP32 ? 4 : 2); }
};

// Expert-major: the sum of each token's rows here, [tokens of the link, H] of the wire's type.
Section sum_pairs(const Returning& r, Index source, Bytes& memory) {
  const Link& link = r.handle.plan.received[at(source)];
  const LinkRows& rows = r.handle.plan.rows[at(source)];
  const Index bytes = r.wire_bytes(), hidden = r.y.shape[1];
  const dropless_dtype wire = r.wire();
  const Index element = wire == DROPLESS_FP32 ? 4 : 2;
  std::byte* to = memory.reserve(link.size() * bytes);
  parallel_ranges(r.threads, link.size(), rows_per_task(2 * bytes), [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      float sums[piece];
      for (Index i = begin; i < end; ++i) {
        for (Index column = 0; column < hidden; column += piece) {
          const Index n = std::min(piece, hidden - column);
          for (Index c = 0; c < n; ++c) sums[c] = 0;
          for (Index p = link.pairs_begin(i); p < link.pairs_end(i); ++p) {
            const Index row = rows.pair[at(p)];
            add(r.rows.at(row, column), r.rows.dtype, r.rows.inner_stride(), n,
                r.weights ? &r.weights.as<float>(row) : nullptr, sums);
          }
          store_run(sums, n, to + i * bytes + column * element, wire, 1);
        }
      }
    });
  });
  return {to, link.size(), bytes, bytes};
}

// Gradients of the weights of a link's pairs, in the order of the pairs.
Section gather_weight_gradients(const Returning& r, Index source, Bytes& memory) {
  const Link& link = r.handle.plan.received[at(source)];
  const LinkRows& rows = r.handle.plan.rows[at(source)];
  const bool expert_major = r.handle.group.choices.expert_major;
  const Index pairs = static_cast<Index>(link.pairs.size());
  std::uint32_t* to = memory.reserve_as<std::uint32_t>(pairs);
  for (Index i = 0; i < link.size(); ++i) {
    for (Index p = link.pairs_begin(i); p < link.pairs_end(i); ++p) {
      to[p] = expert_major ? r.d_row_weights.as<std::uint32_t>(rows.pair[at(p)])
                           : r.d_row_weights.as<std::uint32_t>(rows.first + i, rows.column[at(p)]);
    }
  }
  return {reinterpret_cast<const std::byte*>(to), pairs, 4, 4};
}

// y[t] = sum over the ranks that had the token, in ascending order; one more rounding per node
// where that is declared.
void sum_home(const Returning& r, const std::vector<Round::Sections>& sections) {
  const Plan& plan = r.handle.plan;
  const Group& g = r.handle.group;
  const Index hidden = r.y.shape[1];
  const dropless_dtype wire = r.wire();
  const Index element = wire == DROPLESS_FP32 ? 4 : 2;
  const bool per_node = g.choices.rounding == DROPLESS_COMBINE_ROUNDS_PER_NODE;
  parallel_ranges(r.threads, plan.tokens, rows_per_task(hidden * 8), [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      float sums[piece], of_node[piece];
      for (Index t = begin; t < end; ++t) {
        const HomeEntry* const first = plan.home.data() + plan.home_begin[at(t)];
        const HomeEntry* const last = plan.home.data() + plan.home_begin[at(t + 1)];
        for (Index column = 0; column < hidden; column += piece) {
          const Index n = std::min(piece, hidden - column);
          for (Index c = 0; c < n; ++c) sums[c] = 0;
          for (const HomeEntry* entry = first; entry != last;) {
            if (!per_node) {
              const Section& from = sections[at(entry->rank)][0];
              add(from.row(entry->row) + column * element, wire, 1, n, nullptr, sums);
              ++entry;
              continue;
            }
            const std::int32_t node = g.node_of_rank[at(entry->rank)];
            for (Index c = 0; c < n; ++c) of_node[c] = 0;
            for (; entry != last && g.node_of_rank[at(entry->rank)] == node; ++entry) {
              const Section& from = sections[at(entry->rank)][0];
              add(from.row(entry->row) + column * element, wire, 1, n, nullptr, of_node);
            }
            round_to(r.rows.dtype, n, of_node);
            for (Index c = 0; c < n; ++c) sums[c] += of_node[c];
          }
          store_run(sums, n, r.y.at(t, column), r.y.dtype, r.y.inner_stride());
        }
      }
    });
  });
}

// Weight gradients in the source's k order, 0 for id -1 and for dropped pairs.
void scatter_weight_gradients(const Returning& r, const std::vector<Round::Sections>& sections) {
  const Plan& plan = r.handle.plan;
  for (Index t = 0; t < plan.tokens; ++t) {
    for (Index k = 0; k < plan.top_k; ++k) r.d_weights.as<std::uint32_t>(t, k) = 0;
  }
  for (std::size_t d = 0; d < plan.sent.size(); ++d) {
    const Link& link = plan.sent[d];
    const auto* from = reinterpret_cast<const std::uint32_t*>(sections[d][2].data);
    for (Index i = 0; i < link.size(); ++i) {
      for (Index p = link.pairs_begin(i); p < link.pairs_end(i); ++p) {
        r.d_weights.as<std::uint32_t>(link.tokens[at(i)].token, link.pairs[at(p)].k) = from[p];
      }
    }
  }
}

void return_rows(const Returning& r, Phase phase) {
  Handle& handle = r.handle;
  const Plan& plan = handle.plan;
  const Index ranks = handle.ranks(), own = handle.group.rank;
  const RowSource flat_rows(r.rows, handle.scratch_of(own, 1));
  Round(handle, phase).run([&](Round& round) {
    for (Index step = 0; step < ranks; ++step) {
      const Index s = (own + step) % ranks;
      const Link& link = plan.received[at(s)];
      if (link.empty()) continue;
      Round::Sections sections = {};
      sections[0] = handle.group.choices.expert_major
                        ? sum_pairs(r, s, handle.scratch_of(s, 3))
                        : flat_rows.range(plan.rows[at(s)].first, link.size());
      if (r.d_row_weights) {
        sections[2] = gather_weight_gradients(r, s, handle.scratch_of(s, 0));
      }
      round.offer(s, sections);
    }
    for (Index d = 0; d < ranks; ++d) {
      const Link& link = plan.sent[at(d)];
      if (link.empty()) continue;
      const Index pairs = r.d_row_weights ? static_cast<Index>(link.pairs.size()) : 0;
      round.await(d, {sized(link.size(), r.wire_bytes()), {}, sized(pairs, 4)});
    }
    std::vector<Round::Sections> sections(at(ranks));
    for (Index d = 0; d < ranks; ++d) {
      if (!plan.sent[at(d)].empty()) sections[at(d)] = round.open(d);
    }
    sum_home(r, sections);
    if (r.d_weights) scatter_weight_gradients(r, sections);
  });
}

}  // namespace

void combine(Call& call, const dropless_exchange_combine_args& args) {
  Handle& handle = handle_of(args.exchange);
  const bool moves = may_move(handle);
  const Tensor rows = tensor(args.rows, "rows", floats, {any, any});
  const Tensor y = tensor(args.y, "y", floats, {handle.plan.tokens, rows.shape[1]});
  const bool weighted = handle.group.choices.weighted;
  refuse_if(!weighted && args.row_weights != nullptr,
            "row_weights: only where combine is weighted");
  const Tensor weights =
      weighted ? tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {rows.shape[0]})
               : Tensor{};
  call.ran(path_text(handle));
  if (!moves) return;
  check_rows(handle, rows, "rows");
  return_rows({handle, rows, weights, y, {}, {}, handle.threads(call.threads())}, Phase::combine);
}

void dispatch_backward(Call& call, const dropless_exchange_dispatch_backward_args& args) {
  Handle& handle = handle_of(args.exchange);
  const bool moves = may_move(handle);
  const Plan& plan = handle.plan;
  const Tensor d_rows = tensor(args.d_rows, "d_rows", floats, {any, any});
  const Tensor d_x = tensor(args.d_x, "d_x", floats, {plan.tokens, d_rows.shape[1]});
  const Tensor d_row_weights =
      handle.group.choices.expert_major
          ? optional_tensor(args.d_row_weights, "d_row_weights", {DROPLESS_FP32}, {d_rows.shape[0]})
          : optional_tensor(args.d_row_weights, "d_row_weights", {DROPLESS_FP32},
                            {d_rows.shape[0], plan.top_k});
  const Tensor d_weights =
      optional_tensor(args.d_weights, "d_weights", {DROPLESS_FP32}, {plan.tokens, plan.top_k});
  refuse_if(d_weights.given && !d_row_weights.given, "d_weights: without d_row_weights");
  call.ran(path_text(handle));
  if (!moves) return;
  check_rows(handle, d_rows, "d_rows");
  return_rows({handle, d_rows, {}, d_x, d_row_weights, d_weights, handle.threads(call.threads())},
              Phase::dispatch_backward);
}

}  // namespace dropless::cpu::exchange
