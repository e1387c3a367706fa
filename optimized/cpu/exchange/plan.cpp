// SPDX-License-Identifier: Apache-2.0
// The plan of a step: ids are sorted by destination, every rank tells every other its counts and
// sends it the pairs it will get; overflow is judged by all ranks on the same counts (EXCHANGE-10,
// 11). The counts of all ranks come with every plan, so a rank knows of an overflow anywhere also
// on a step without a check: that step is not reported, but nothing moves in it.
#include <cstring>
#include <limits>

#include "optimized/cpu/exchange/handle.h"
#include "optimized/cpu/exchange/operations.h"
#include "optimized/cpu/exchange/rows.h"

namespace dropless::cpu::exchange {
namespace {

struct Outputs {
  Tensor tokens_per_local_expert, offsets, rows_per_source, global_counts, total_rows, demand;
  Tensor sent_bytes, sent_node_bytes, first_overflow_step, unseen_steps, dropped_pairs;
};

Outputs read_outputs(const dropless_exchange_plan_args& args, const Group& g) {
  const auto one = [](const dropless_tensor* given, const char* name) {
    return optional_tensor(given, name, {DROPLESS_I64}, {1});
  };
  Outputs out;
  out.tokens_per_local_expert =
      tensor(args.tokens_per_local_expert, "tokens_per_local_expert", {DROPLESS_I64}, {g.slots});
  out.offsets = tensor(args.offsets, "offsets", {DROPLESS_I64}, {g.slots + 1});
  out.rows_per_source =
      tensor(args.rows_per_source, "rows_per_source", {DROPLESS_I64}, {Index{g.ranks}});
  out.global_counts =
      optional_tensor(args.global_counts, "global_counts", {DROPLESS_I64}, {g.experts});
  out.total_rows = tensor(args.total_rows, "total_rows", {DROPLESS_I64}, {1});
  out.demand = tensor(args.demand, "demand", {DROPLESS_I64}, {1});
  out.sent_bytes = one(args.sent_bytes, "sent_bytes");
  out.sent_node_bytes = one(args.sent_node_bytes, "sent_node_bytes");
  out.first_overflow_step = one(args.first_overflow_step, "first_overflow_step");
  out.unseen_steps = one(args.unseen_steps, "unseen_steps");
  out.dropped_pairs = one(args.dropped_pairs, "dropped_pairs");
  return out;
}

void store(const Tensor& out, Index value, Index i = 0) {
  if (out) out.as<std::int64_t>(i) = value;
}

Section whole(const void* data, Index rows, Index row_bytes) {
  return {static_cast<const std::byte*>(data), rows, row_bytes, row_bytes};
}

template <class T>
void copy_section(const Section& from, std::vector<T>& to) {
  to.resize(at(from.rows));
  if (from.rows > 0) {
    std::memcpy(to.data(), from.data, static_cast<std::size_t>(from.rows) * sizeof(T));
  }
}

void add(const std::int64_t* from, Counts& to) {
  for (std::int64_t& value : to.values) value += *from++;
}

Round::Sections routing_for(const Link& link, const Section& counts) {
  return {counts, whole(link.tokens.data(), link.size(), sizeof(LinkToken)),
          whole(link.pairs.data(), static_cast<Index>(link.pairs.size()), sizeof(Pair))};
}

void take_link(const Round::Sections& sections, Link& link) {
  copy_section(sections[1], link.tokens);
  copy_section(sections[2], link.pairs);
}

// The counts of all ranks lie side by side: only links with rows travel.
void exchange_links(Round& round, const Gathered& all, Handle& handle) {
  const Group& g = handle.group;
  Plan& p = handle.plan;
  p.totals.values = all.totals;
  if (g.choices.overflow == DROPLESS_OVERFLOW_DROP) {
    for (Index r = 0; r < g.rank; ++r) add(all.of_rank[at(r)], p.before);
  }
  const auto sends_here = [&](Index r) {
    return r != g.rank && all.of_rank[at(r)][g.ranks * g.slots + g.rank] > 0;
  };
  for (Index r = 0; r < g.ranks; ++r) {
    if (r != g.rank && !p.sent[at(r)].empty()) round.offer(r, routing_for(p.sent[at(r)], {}));
  }
  for (Index r = 0; r < g.ranks; ++r) {
    if (sends_here(r)) static_cast<void>(round.sizes(r));
  }
  for (Index r = 0; r < g.ranks; ++r) {
    p.received[at(r)].clear();
    if (sends_here(r)) take_link(round.open(r), p.received[at(r)]);
  }
}

// Every rank tells every other one its counts, and the link.
void exchange_counts_and_links(Round& round, Handle& handle) {
  const Group& g = handle.group;
  Plan& p = handle.plan;
  const Section counts = whole(p.counts.values.data(), static_cast<Index>(p.counts.values.size()),
                               sizeof(std::int64_t));
  for (Index step = 0; step < g.ranks; ++step) {  // not everybody to rank 0 first
    const Index r = (g.rank + step) % g.ranks;
    round.offer(r, routing_for(p.sent[at(r)], counts));
  }
  for (Index r = 0; r < g.ranks; ++r) {
    Round::Sections wanted = round.sizes(r);
    wanted[0] = sized(counts.rows, counts.row_bytes);
    round.await(r, wanted);
  }
  std::vector<std::int64_t> theirs;
  for (Index r = 0; r < g.ranks; ++r) {
    const Round::Sections& sections = round.open(r);
    copy_section(sections[0], theirs);
    add(theirs.data(), p.totals);
    if (r < g.rank) add(theirs.data(), p.before);
    if (r != g.rank) take_link(sections, p.received[at(r)]);
  }
}

// Counts of all ranks, and the links to this one.
void exchange_routing(Handle& handle) {
  const Group& g = handle.group;
  Plan& p = handle.plan;
  p.received.resize(at(g.ranks));
  p.totals.reset(g);
  p.before.reset(g);
  Round(handle, Phase::plan).run([&](Round& round) {
    if (const Gathered* all = round.gather(p.counts.values)) {
      exchange_links(round, *all, handle);
    } else {
      exchange_counts_and_links(round, handle);
    }
    p.received[at(g.rank)] = p.sent[at(g.rank)];
  });
}

// Both sides of every link of this rank forget what does not fit.
void drop_rows(Handle& handle) {
  const Group& g = handle.group;
  Plan& p = handle.plan;
  const Index count = g.choices.expert_major ? g.slots : 1;
  for (Index r = 0; r < g.ranks; ++r) {
    const RowZones zones = make_zones(g, p.totals, r, g.capacity);
    std::vector<Index> next(at(count));
    for (Index s = 0; s < count; ++s) {
      next[at(s)] = g.choices.expert_major ? p.before.pairs(g, r, s) : p.before.tokens(g, r);
    }
    drop(g, zones, next, p.sent[at(r)]);
    if (r == g.rank) p.zones = zones;
  }
  std::vector<Index> next(at(count), 0);
  for (Link& link : p.received) drop(g, p.zones, next, link);
}

// Ranks in ascending order; where sums are rounded per node, one node after the other (EXCHANGE-6).
std::vector<std::int32_t> summing_order(const Group& g) {
  std::vector<std::int32_t> order(at(g.ranks));
  for (std::int32_t r = 0; r < g.ranks; ++r) order[at(r)] = r;
  if (g.choices.rounding == DROPLESS_COMBINE_ROUNDS_PER_NODE) {
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return g.node_of_rank[at(a)] < g.node_of_rank[at(b)];
    });
  }
  return order;
}

// Which rows come home to each token, in the order in which they are added.
void make_home(const Group& g, Plan& p) {
  p.home_begin.assign(at(p.tokens + 1), 0);
  for (const Link& link : p.sent) {
    for (const LinkToken& token : link.tokens) ++p.home_begin[at(token.token + 1)];
  }
  for (Index t = 0; t < p.tokens; ++t) p.home_begin[at(t + 1)] += p.home_begin[at(t)];
  p.home.resize(at(p.home_begin.back()));
  std::vector<std::int32_t> next(p.home_begin.begin(), p.home_begin.end() - 1);
  for (const std::int32_t r : summing_order(g)) {
    const Link& link = p.sent[at(r)];
    for (Index i = 0; i < link.size(); ++i) {
      std::int32_t& place = next[at(link.tokens[at(i)].token)];
      p.home[at(place++)] = {r, static_cast<std::int32_t>(i)};
    }
  }
}

// Bytes to other ranks: distinct tokens times payload and scales (EXCHANGE-5), after a drop.
Index tokens_sent(const Handle& handle) {
  Index sum = 0;
  for (Index r = 0; r < handle.group.ranks; ++r) {
    if (r != handle.group.rank) sum += handle.plan.sent[at(r)].size();
  }
  return sum;
}

void write_counts(const Handle& handle, const Outputs& out) {
  const Group& g = handle.group;
  const Plan& p = handle.plan;
  std::vector<Index> pairs(at(g.slots), 0);
  Index all_pairs = 0, kept_pairs = 0;
  for (Index r = 0; r < g.ranks; ++r) {
    const Link& link = p.received[at(r)];
    for (const Pair& pair : link.pairs) ++pairs[at(pair.slot)];
    kept_pairs += static_cast<Index>(link.pairs.size());
    store(out.rows_per_source,
          g.choices.expert_major ? static_cast<Index>(link.pairs.size()) : link.size(), r);
  }
  Index offset = 0;
  store(out.offsets, 0);
  for (Index s = 0; s < g.slots; ++s) {
    all_pairs += p.totals.pairs(g, g.rank, s);
    store(out.tokens_per_local_expert, pairs[at(s)], s);
    offset += align_up(pairs[at(s)], g.choices.alignment);
    store(out.offsets, offset, s + 1);
  }
  for (Index e = 0; out.global_counts && e < g.experts; ++e) store(out.global_counts, 0, e);
  for (Index slot = 0; out.global_counts && slot < g.ranks * g.slots; ++slot) {
    const std::int32_t expert = g.expert_of_slot[at(slot)];
    if (expert >= 0) out.global_counts.as<std::int64_t>(expert) += p.totals.values[at(slot)];
  }
  store(out.total_rows, p.zones.rows());
  const Index bytes = g.row_bytes + g.scale_bytes;
  store(out.sent_bytes, tokens_sent(handle) * bytes);
  if (out.sent_node_bytes) {
    store(out.sent_node_bytes, tokens_to_other_nodes(g, p.sent, p.tokens) * bytes);
  }
  store(out.dropped_pairs, all_pairs - kept_pairs);
}

}  // namespace

void plan(Call& call, dropless_exchange_plan_args& args) {
  Handle& handle = handle_of(args.exchange);
  const Group& g = handle.group;
  handle.refuse_if_failed();
  const Tensor ids = tensor(args.ids, "ids", integers, {any, g.top_k});
  if (ids.shape[0] > g.max_tokens) {
    refuse("ids: " + std::to_string(ids.shape[0]) + " tokens, opened for at most " +
           std::to_string(g.max_tokens));
  }
  const Outputs out = read_outputs(args, g);
  refuse_if(args.step < 0, "step: negative");
  check_ids(ids, g.experts);

  // The new routing replaces the old one entirely (EXCHANGE-12).
  Plan& p = handle.plan;
  p.state = Plan::State::none;
  p.tokens = ids.shape[0], p.top_k = g.top_k;
  make_links(g, ids, p.sent, p.counts);
  exchange_routing(handle);

  Index demand = 0;
  for (Index r = 0; r < g.ranks; ++r) demand = std::max(demand, rows_needed(g, p.totals, r));
  if (demand > std::numeric_limits<std::int32_t>::max()) {
    throw Refusal{DROPLESS_NOT_SUPPORTED, "exchange_plan: more than 2^31 - 1 rows on a rank"};
  }
  const int policy = g.choices.overflow;
  const bool over = policy != DROPLESS_OVERFLOW_RETRY && demand > g.capacity;
  if (over && policy == DROPLESS_OVERFLOW_TRAP) __builtin_trap();  // EXCHANGE-10: ends the process
  Unchecked& u = handle.unchecked;
  if (over) {
    if (u.first_step < 0) u.first_step = args.step;
    u.demand = std::max(u.demand, demand);
  }
  const bool due = args.last_step != 0 || (args.step + 1) % g.check_every == 0;
  args.checked = due ? 1 : 0;
  const Unchecked found = due ? u : Unchecked{};
  if (due) u = Unchecked{};
  store(out.first_overflow_step, found.first_step);
  store(out.unseen_steps, found.first_step < 0 ? 0 : args.step - found.first_step);
  if (found.first_step >= 0 && policy == DROPLESS_OVERFLOW_ERROR) {
    p.state = Plan::State::refused;
    store(out.demand, found.demand);
    throw Refusal{DROPLESS_OVERFLOW,
                  "exchange_plan: the fullest rank needs " + std::to_string(found.demand) +
                      " rows, the capacity is " + std::to_string(g.capacity) + " (first in step " +
                      std::to_string(found.first_step) +
                      "); raise ragged_buffer_factor, or set -1 for the worst case"};
  }

  const bool dropping = over && policy == DROPLESS_OVERFLOW_DROP;
  if (dropping) {
    drop_rows(handle);
  } else {
    p.zones = make_zones(g, p.totals, g.rank, -1);
  }
  make_rows(g, p.zones, p.received, p.rows);
  make_home(g, p);
  p.state = over && !dropping ? Plan::State::overflowed : Plan::State::ready;
  store(out.demand, demand);
  write_counts(handle, out);
  call.ran(path_text(handle));
}

}  // namespace dropless::cpu::exchange
