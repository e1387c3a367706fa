// SPDX-License-Identifier: Apache-2.0
// Rows back to their tokens: combine, and the backward of dispatch (EXCHANGE-6, 7). A rank returns
// one row for every token that it got: the caller's own (flat), or the sum of the token's rows in k
// order (expert-major). Where memory is shared, the token's rank makes that sum itself, out of the
// rows where they lie. It adds the ranks in ascending order: every transport gives the same bits.
#include "optimized/cpu/exchange/operations.h"
#include "optimized/cpu/exchange/rows.h"
#include "optimized/cpu/exchange/stream.h"
#include "optimized/cpu/exchange/summing.h"

namespace dropless::cpu::exchange {
namespace {

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

// Calls body(i, terms, those of i + 1) for i in [begin, end). make(i, terms) appends the terms of
// i.
template <class Make, class Body>
void for_terms(Index begin, Index end, const Make& make, const Body& body) {
  std::vector<Term> now, next;
  if (begin < end) make(begin, now);
  for (Index i = begin; i < end; ++i) {
    next.clear();
    if (i + 1 < end) make(i + 1, next);
    body(i, now, next);
    now.swap(next);
  }
}

// Expert-major: the sum of each token's rows here, [tokens of the link, H] of the wire's type.
Section sum_pairs(const Returning& r, const RowSource& source_rows, Index source, Bytes& memory) {
  const Link& link = r.handle.plan.received[at(source)];
  const Section pairs = source_rows.chosen(r.handle.plan.rows[at(source)].pair);
  const Index bytes = r.wire_bytes();
  const RowSum sum{r.rows.dtype, r.wire(), r.y.shape[1]};
  std::byte* to = memory.reserve(link.size() * bytes);
  parallel_ranges(r.threads, link.size(), rows_per_task(2 * bytes), [&](Index begin, Index end) {
    const auto make = [&](Index i, std::vector<Term>& terms) {
      for (Index p = link.pairs_begin(i); p < link.pairs_end(i); ++p) {
        const float weight = r.weights ? r.weights.as<float>(pairs.index[p]) : 1;
        const bool last = p + 1 == link.pairs_end(i);
        terms.push_back({pairs.row(p), weight, last, last});
      }
    };
    for_terms(begin, end, make, [&](Index i, const auto& terms, const auto& ahead) {
      sum_rows(sum, terms, ahead, to + i * bytes);
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

// What the ranks returned for token t, in the order of plan.home.
void add_returned(const Returning& r, const std::vector<Round::Sections>& sections, Index t,
                  std::vector<Term>& terms) {
  const Plan& plan = r.handle.plan;
  const Group& g = r.handle.group;
  const bool per_node = g.choices.rounding == DROPLESS_COMBINE_ROUNDS_PER_NODE;
  const Index end = plan.home_begin[at(t + 1)];
  for (Index h = plan.home_begin[at(t)]; h < end; ++h) {
    const HomeEntry entry = plan.home[at(h)];
    const Round::Sections& from = sections[at(entry.rank)];
    if (!r.pairs_travel()) {
      terms.push_back({from[0].row(entry.row)});
    } else {
      const Link& link = plan.sent[at(entry.rank)];
      const auto* weights = reinterpret_cast<const float*>(from[1].data);
      for (Index p = link.pairs_begin(entry.row); p < link.pairs_end(entry.row); ++p) {
        terms.push_back({from[0].row(p), r.weights ? weights[p] : 1});
      }
    }
    terms.back().ends_rank = true;
    terms.back().ends_node =
        !per_node || h + 1 == end ||
        g.node_of_rank[at(entry.rank)] != g.node_of_rank[at(plan.home[at(h + 1)].rank)];
  }
}

// y[t] = sum over the ranks that had the token, in ascending order; one more rounding per node
// where that is declared.
void sum_home(const Returning& r, const std::vector<Round::Sections>& sections) {
  const Index hidden = r.y.shape[1], bytes = hidden * r.y.element;
  const bool rounds = r.rows.dtype == DROPLESS_BF16;
  RowSum sum{r.wire(), r.y.dtype, hidden};
  sum.rounds_rank = rounds && r.pairs_travel() && r.rounds_per_rank();
  sum.rounds_node = rounds && r.handle.group.choices.rounding == DROPLESS_COMBINE_ROUNDS_PER_NODE;
  const bool dense = r.y.inner_stride() == 1;
  const bool streams = dense && r.handle.plan.tokens * bytes >= streaming_bytes;
  parallel_ranges(r.threads, r.handle.plan.tokens, rows_per_task(hidden * 8),
                  [&](Index begin, Index end) {
                    std::vector<std::byte> row(at(dense && !streams ? 0 : bytes));
                    const auto make = [&](Index t, std::vector<Term>& terms) {
                      add_returned(r, sections, t, terms);
                    };
                    for_terms(begin, end, make, [&](Index t, const auto& terms, const auto& ahead) {
                      sum_rows(sum, terms, ahead, row.empty() ? r.y.at(t) : row.data());
                      if (streams) stream_copy(r.y.at(t), row.data(), bytes);
                      if (!dense) store_row(row.data(), r.y, t);
                    });
                    if (streams) finish_streaming();
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
    sections[0] = sum_pairs(r, rows, source, handle.scratch_of(source, 3));
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
