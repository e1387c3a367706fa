// SPDX-License-Identifier: Apache-2.0
// Checks of the settings of an exchange (GENERAL-3) and its capacity (EXCHANGE-9).
#include "optimized/cpu/exchange/group.h"

#include <cmath>
#include <limits>

namespace dropless::cpu::exchange {
namespace {

Index times(Index a, Index b) {
  Index product = 0;
  refuse_if(__builtin_mul_overflow(a, b, &product) || product > (Index{1} << 53),
            "settings: more rows than can be counted");
  return product;
}

// Experts in contiguous blocks of L, or as the placement says (EXCHANGE-0).
void read_placement(const dropless_tensor* placement, Group& g) {
  if (placement == nullptr) {
    if (g.experts % g.ranks != 0) {
      refuse("num_experts: " + std::to_string(g.experts) + " is not divisible by " +
             std::to_string(g.ranks) + " ranks, and there is no placement");
    }
    g.slots = g.experts / g.ranks;
    for (Index e = 0; e < g.experts; ++e) {
      g.expert_of_slot.push_back(static_cast<std::int32_t>(e));
    }
  } else {
    const Tensor map = tensor(placement, "placement", {DROPLESS_I32}, {g.ranks, any});
    g.slots = map.shape[1];
    for (Index r = 0; r < g.ranks; ++r) {
      std::vector<char> here(at(g.experts), 0);
      for (Index s = 0; s < g.slots; ++s) {
        const std::int32_t expert = map.as<std::int32_t>(r, s);
        refuse_if(expert < -1 || expert >= g.experts, "placement: outside -1 .. E-1");
        if (expert >= 0) {
          if (here[at(expert)]++ != 0) {
            refuse("placement: expert " + std::to_string(expert) + " twice on rank " +
                   std::to_string(r));
          }
        }
        g.expert_of_slot.push_back(expert);
      }
    }
  }
  std::vector<std::vector<Place>> copies(at(g.experts));
  for (Index slot = 0; slot < static_cast<Index>(g.expert_of_slot.size()); ++slot) {
    const std::int32_t expert = g.expert_of_slot[at(slot)];
    if (expert < 0) continue;
    copies[at(expert)].push_back(
        {static_cast<std::int32_t>(slot / g.slots), static_cast<std::int32_t>(slot % g.slots)});
  }
  g.copies_begin.push_back(0);
  for (Index e = 0; e < g.experts; ++e) {
    if (copies[at(e)].empty()) refuse("placement: expert " + std::to_string(e) + " has no slot");
    g.copies.insert(g.copies.end(), copies[at(e)].begin(), copies[at(e)].end());
    g.copies_begin.push_back(static_cast<std::int32_t>(g.copies.size()));
  }
}

}  // namespace

Place Group::place(Index token, Index k, Index expert) const {
  const Index first = copies_begin[at(expert)], count = copies_begin[at(expert + 1)] - first;
  if (count == 1) return copies[at(first)];
  Index copy = token % count;
  if (choices.replica_copy != nullptr) {
    copy = choices.replica_copy(rank, token, k, expert, count);
    refuse_if(copy < 0 || copy >= count, "replica_copy: outside 0 .. copies-1");
  }
  return copies[at(first + copy)];
}

Index capacity_rows(Index ranks, Index tokens, Index top_k, Index local_experts, double factor,
                    bool expert_major, Index a) {
  const Index all = times(ranks, tokens);
  Index worst = all;
  if (expert_major) {
    const Index pairs = times(all, std::min(top_k, local_experts));
    worst = std::min(times(local_experts, align_up(all, a)),
                     align_up(pairs + (a - 1) * std::min(local_experts, pairs), a));
  }
  if (factor < 0) return worst;
  // In double, as the clause says; the last factor absorbs decimal factors rounded up on the way.
  const auto up = [a](double rows) {
    return std::ceil(rows / static_cast<double>(a)) * static_cast<double>(a);
  };
  const double t = static_cast<double>(tokens), l = static_cast<double>(local_experts);
  const double of_expert = local_experts == 0 ? 0 : t * static_cast<double>(top_k) / l;
  const double balanced = up(std::ceil(l * up(std::ceil(of_expert)) * factor * (1 - 0x1p-20)));
  const double wanted = std::max(up(t), balanced);
  return wanted >= static_cast<double>(worst) ? worst : static_cast<Index>(wanted);
}

Group read_group(const dropless_exchange_settings* settings, const Choices& choices) {
  const dropless_exchange_settings s = read_struct(settings, "settings");
  Group g;
  g.choices = choices;
  g.rank = s.rank, g.ranks = s.ranks;
  g.experts = s.num_experts, g.top_k = s.top_k, g.max_tokens = s.max_tokens;
  g.row_bytes = s.row_bytes, g.scale_bytes = s.scale_bytes;
  g.factor = s.ragged_buffer_factor, g.timeout_seconds = s.timeout_seconds;
  g.all_gather = s.all_gather, g.all_gather_context = s.all_gather_context;
  refuse_if(g.ranks < 1, "ranks: less than one");
  refuse_if(g.rank < 0 || g.rank >= g.ranks, "rank: outside 0 .. R-1");
  constexpr Index most = std::numeric_limits<std::int32_t>::max();
  refuse_if(g.experts < 0 || g.experts > most, "num_experts: negative or too large");
  refuse_if(g.top_k < 0, "top_k: negative");
  refuse_if(g.top_k > g.experts, "top_k exceeds num_experts");
  refuse_if(g.max_tokens < 0, "max_tokens: negative");
  refuse_if(g.row_bytes < 0, "row_bytes: negative");
  refuse_if(g.scale_bytes < 0, "scale_bytes: negative");
  refuse_if(!(g.factor == -1 || (g.factor >= 1 && std::isfinite(g.factor))),
            "ragged_buffer_factor: neither -1 nor a number from 1 on");
  refuse_if(!(g.timeout_seconds > 0) || !(g.timeout_seconds < 1e9),
            "timeout_seconds: not positive");
  refuse_if(s.overflow_check_every < 0, "overflow_check_every: negative");
  g.check_every = std::max<Index>(1, s.overflow_check_every);
  if (times(g.max_tokens, std::max<Index>(g.top_k, 1)) > most) {
    throw Refusal{DROPLESS_NOT_SUPPORTED, "max_tokens: more than 2^31 - 1 pairs on a rank"};
  }
  g.node_of_rank.assign(at(g.ranks), 0);
  if (s.node_of_rank != nullptr) {
    const Tensor nodes = tensor(s.node_of_rank, "node_of_rank", {DROPLESS_I32}, {g.ranks});
    for (Index r = 0; r < g.ranks; ++r) {
      g.node_of_rank[at(r)] = nodes.as<std::int32_t>(r);
      refuse_if(g.node_of_rank[at(r)] < 0, "node_of_rank: negative");
    }
  }
  read_placement(s.placement, g);
  g.capacity = capacity_rows(g.ranks, g.max_tokens, g.top_k, g.slots, g.factor,
                             choices.expert_major, choices.alignment);
  return g;
}

}  // namespace dropless::cpu::exchange
