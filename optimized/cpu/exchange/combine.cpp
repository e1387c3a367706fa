// SPDX-License-Identifier: Apache-2.0
// Rows back to their tokens: combine, and the backward of dispatch (EXCHANGE-6, 7). A rank returns
// one row for every token that it got: the caller's own (flat), or the sum of the token's rows in k
// order (expert-major). Where memory is shared, the token's rank makes that sum itself, out of the
// rows where they lie. It adds the ranks in ascending order: every transport gives the same bits.
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

  // Whether the rows of a token are added up before they travel.
  [[nodiscard]] bool sums_first() const {
    return handle.group.choices.expert_major && !handle.shares_memory();
  }
  [[nodiscard]] bool pairs_travel() const {
    return handle.group.choices.expert_major && handle.shares_memory();
  }
  [[nodiscard]] bool rounds_per_rank() const {
    return handle.group.choices.rounding == DROPLESS_COMBINE_ROUNDS_PER_RANK;
  }
  // Type of the rows that travel: sums are rounded on the way only where that is declared.
  [[nodiscard]] dropless_dtype wire() const {
    return sums_first() && !rounds_per_rank() ? DROPLESS_FP32 : rows.dtype;
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

// Weights of a link's pairs, in the order of the pairs.
Section gather_weights(const Returning& r, Index source, Bytes& memory) {
  const LinkRows& rows = r.handle.plan.rows[at(source)];
  const Index pairs = static_cast<Index>(rows.pair.size());
  float* to = memory.reserve_as<float>(pairs);
  for (Index p = 0; p < pairs; ++p) to[p] = r.weights.as<float>(rows.pair[at(p)]);
  return {reinterpret_cast<const std::byte*>(to), pairs, 4, 4};
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

// Columns of what a rank returned for one token: one row, or the sum of its pairs.
DROPLESS_INLINE void add_returned(const Returning& r, const HomeEntry& entry,
                                  const Round::Sections& from, Index column, Index n, float* sums) {
  const dropless_dtype wire = r.wire();
  const Index offset = column * (wire == DROPLESS_FP32 ? 4 : 2);
  if (!r.pairs_travel()) {
    add(from[0].row(entry.row) + offset, wire, 1, n, nullptr, sums);
    return;
  }
  const Link& link = r.handle.plan.sent[at(entry.rank)];
  const auto* weights = reinterpret_cast<const float*>(from[1].data);
  float of_rank[piece];
  for (Index c = 0; c < n; ++c) of_rank[c] = 0;
  for (Index p = link.pairs_begin(entry.row); p < link.pairs_end(entry.row); ++p) {
    add(from[0].row(p) + offset, wire, 1, n, r.weights ? weights + p : nullptr, of_rank);
  }
  if (r.rounds_per_rank()) round_to(r.rows.dtype, n, of_rank);
  for (Index c = 0; c < n; ++c) sums[c] += of_rank[c];
}

// y[t] = sum over the ranks that had the token, in ascending order; one more rounding per node
// where that is declared.
void sum_home(const Returning& r, const std::vector<Round::Sections>& sections) {
  const Plan& plan = r.handle.plan;
  const Group& g = r.handle.group;
  const Index hidden = r.y.shape[1];
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
              add_returned(r, *entry, sections[at(entry->rank)], column, n, sums);
              ++entry;
              continue;
            }
            const std::int32_t node = g.node_of_rank[at(entry->rank)];
            for (Index c = 0; c < n; ++c) of_node[c] = 0;
            for (; entry != last && g.node_of_rank[at(entry->rank)] == node; ++entry) {
              add_returned(r, *entry, sections[at(entry->rank)], column, n, of_node);
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

Round::Sections returned_to(const Returning& r, const RowSource& rows, Index source) {
  Handle& handle = r.handle;
  const LinkRows& own = handle.plan.rows[at(source)];
  Round::Sections sections = {};
  if (r.sums_first()) {
    sections[0] = sum_pairs(r, source, handle.scratch_of(source, 3));
  } else if (r.pairs_travel()) {
    sections[0] = rows.chosen(own.pair);
    if (r.weights) sections[1] = gather_weights(r, source, handle.scratch_of(source, 2));
  } else {
    sections[0] = rows.range(own.first, handle.plan.received[at(source)].size());
  }
  if (r.d_row_weights) {
    sections[2] = gather_weight_gradients(r, source, handle.scratch_of(source, 0));
  }
  return sections;
}

void return_rows(const Returning& r, Phase phase) {
  Handle& handle = r.handle;
  const Plan& plan = handle.plan;
  const Index ranks = handle.ranks(), own = handle.group.rank;
  const RowSource rows(r.rows, handle.scratch_of(own, 1));
  Round(handle, phase).run([&](Round& round) {
    for (Index step = 0; step < ranks; ++step) {
      const Index s = (own + step) % ranks;
      if (!plan.received[at(s)].empty()) round.offer(s, returned_to(r, rows, s));
    }
    for (Index d = 0; d < ranks; ++d) {
      const Link& link = plan.sent[at(d)];
      if (link.empty()) continue;
      const Index pairs = static_cast<Index>(link.pairs.size());
      round.await(d, {sized(r.pairs_travel() ? pairs : link.size(), r.wire_bytes()),
                      sized(r.pairs_travel() && r.weights ? pairs : 0, 4),
                      sized(r.d_row_weights ? pairs : 0, 4)});
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
