// SPDX-License-Identifier: Apache-2.0
// Tags and what they tell after the journey.
#include "conformance/cases/exchange/payload.h"

#include <cstring>
#include <map>

namespace dropless::conformance {
namespace {

constexpr std::size_t unit_bytes = 16;

// Tags are small numbers: units take turns in what their bytes are combined with, so that bits of
// all kinds travel, codes of NaN and of negative zero among them (EXCHANGE-2a).
std::uint8_t mask_of(Index unit) {
  constexpr std::uint8_t masks[] = {0x00, 0xff, 0x80, 0x7f};
  return masks[unit % 4];
}

std::array<std::uint8_t, unit_bytes> tag_of(Index rank, Index token, Index call, Index unit) {
  const std::uint32_t words[4] = {
      static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(token),
      static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(unit)};
  std::array<std::uint8_t, unit_bytes> bytes;
  for (std::size_t i = 0; i < unit_bytes; ++i) {
    bytes[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4))) ^ mask_of(unit);
  }
  return bytes;
}

std::uint64_t mixed(Index rank, Index token, Index call, Index position) {
  return Random(
             static_cast<std::uint64_t>(((call * 4096 + rank) * 65536 + token) * 4096 + position))
      .bits();
}

Sent sent_by(const Routing& routing, const PayloadForm& form, Index top_k, Index rank, Index call) {
  Sent sent;
  sent.dtype = form.dtype, sent.hidden = form.hidden, sent.unweighted = !form.weights;
  const Index tokens = routing.tokens(rank), row_bytes = form.row_bytes();
  sent.x.resize(at(tokens * row_bytes));
  for (Index t = 0; t < tokens; ++t) {
    for (Index first = 0; first < row_bytes; first += unit_bytes) {
      const auto tag = tag_of(rank, t, call, first / static_cast<Index>(unit_bytes));
      const auto bytes = std::min(unit_bytes, at(row_bytes - first));
      std::memcpy(&sent.x[at(t * row_bytes + first)], tag.data(), bytes);
    }
    for (Index s = 0; s < form.scale_bytes; ++s) {
      sent.scales.push_back(static_cast<std::uint8_t>(mixed(rank, t, call, 2048 + s)));
    }
    for (Index j = 0; form.weights && j < top_k; ++j) {
      auto bits = static_cast<std::uint32_t>(mixed(rank, t, call, j));
      if (form.any_bits) {
        if (bits % 8 == 0) bits &= 0x807fffffu;  // some are subnormal, of either sign,
        if (bits % 8 == 1) bits = 0x80000000u;   // or a negative zero
      } else {
        const bool zero = bits >> 29 == 0;  // one of eight: a weight of 0 erases nothing
        bits = zero ? 0u : (bits & 0x00ffffffu) | 0x3e000000u;  // 2^-3 .. 2^-1
      }
      for (int byte = 0; byte < 4; ++byte) {
        sent.weights.push_back(static_cast<std::uint8_t>(bits >> (8 * byte)));
      }
    }
  }
  return sent;
}

using Spans = std::vector<std::span<const std::byte>>;

Spans spans_of(const Payload& payload, Bytes Sent::*member) {
  Spans spans;
  for (const Sent& sent : payload.sent) spans.push_back(std::as_bytes(std::span(sent.*member)));
  return spans;
}

// Rows of the reference in the order of the buffer, zero beyond.
Bytes in_order(const World& world, const Routing& routing, const Order& order,
               const reference::Bytes& by_reference, std::size_t row_bytes) {
  Bytes out(at(world.buffer_rows(routing)) * row_bytes, 0);
  for (std::size_t row = 0; row < order.size(); ++row) {
    if (row_bytes == 0) break;
    std::memcpy(&out[row * row_bytes], &by_reference[at(order[row]) * row_bytes], row_bytes);
  }
  return out;
}

// One kind of bytes that travel with the rows: real rows, padding and tail.
void judge_bytes(World& world, const Routing& routing, const Order& order, const char* clause,
                 const char* what, const Buffer& got, const reference::Bytes& expected) {
  const Index rows = world.buffer_rows(routing);
  const Index columns = rows == 0 ? 0 : got.size() / rows;
  const std::size_t row_bytes = at(columns) * dtype_bytes(got.dtype());
  const Bytes bytes = in_order(world, routing, order, expected, row_bytes);
  Judge& judge = world.run.judge();
  judge.exact_bytes(clause, what, got, bytes,
                    row_elements(world, routing, order, columns, RowsOf::real));
  judge.exact_bytes("EXCHANGE-3d", std::string("padding of ") + what, got, bytes,
                    row_elements(world, routing, order, columns, RowsOf::padding));
  judge_tail(world, routing, what, got);
}

std::uint32_t word_of(const Bytes& bytes, std::size_t first) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i) word |= std::uint32_t{bytes[first + i]} << (8 * i);
  return word;
}

std::string told_by(Bytes bytes, std::size_t first, Index unit) {
  for (std::size_t i = first; i < first + unit_bytes; ++i) bytes[i] ^= mask_of(unit);
  return "rank " + std::to_string(word_of(bytes, first)) + ", token " +
         std::to_string(word_of(bytes, first + 4)) + ", call " +
         std::to_string(word_of(bytes, first + 8)) + ", unit " +
         std::to_string(word_of(bytes, first + 12));
}

using Arrivals = std::map<std::array<Index, 3>, Index>;  // zone, source rank, token

// What must arrive, from the ids alone.
Arrivals selected(const World& world, const Routing& routing) {
  Arrivals wanted;
  const reference::ExchangeTopology& topology = routing.plan.topology;
  const Index top_k = world.settings.top_k;
  for (Index from = 0; from < world.ranks; ++from) {
    const std::vector<Index>& ids = routing.ids[at(from)];
    for (Index pair = 0; pair < static_cast<Index>(ids.size()); ++pair) {
      if (ids[at(pair)] < 0) continue;
      const Index slot = reference::serving_slot(world.run.profile(), topology, from, pair / top_k,
                                                 pair % top_k, ids[at(pair)]);
      if (topology.rank_of(slot) != world.rank) continue;
      const Index zone = world.flat() ? 0 : topology.local_id(slot);
      Index& count = wanted[{zone, from, pair / top_k}];
      count = world.flat() ? 1 : count + 1;
    }
  }
  return wanted;
}

std::string text_of(const Arrivals::key_type& key, const World& world) {
  const std::string zone = world.flat() ? "" : " for local expert " + std::to_string(key[0]);
  return "rank " + std::to_string(key[1]) + ", token " + std::to_string(key[2]) + zone;
}

const char* layout_clause(const World& world) {
  if (world.unordered()) return "EXCHANGE-3e";
  return world.flat() ? "EXCHANGE-3a" : "EXCHANGE-3c";
}

// EXCHANGE-1a, 1b without the reference's plan: units of a row agree, and what arrived is what was
// selected. Under the policy drop only on plans that did not overflow.
void judge_tags(World& world, const Routing& routing, const Payload& payload,
                const DispatchBuffers& got, const Order& order) {
  const std::size_t row_bytes = at(payload.form.row_bytes());
  if (row_bytes < unit_bytes || routing.plan.overflow) return;
  const Bytes bytes = got.rows->bytes();
  const reference::ReceivedRows& received = routing.received(world.rank);
  Judge& judge = world.run.judge();
  Arrivals wanted = selected(world, routing);
  Index zone = 0;
  const std::vector<Index> sources = reference::dispatch_sources(routing.plan, world.rank);
  std::string torn, extra, misplaced;
  for (std::size_t row = 0; row < order.size(); ++row) {
    while (!world.flat() && received.offsets[at(zone + 1)] <= static_cast<Index>(row)) ++zone;
    if (received.source[at(order[row])] < 0) continue;
    const std::size_t start = row * row_bytes;
    const Index from = word_of(bytes, start), token = word_of(bytes, start + 4);
    for (std::size_t first = 0; first + unit_bytes <= row_bytes; first += unit_bytes) {
      const auto unit = static_cast<Index>(first / unit_bytes);
      const auto tag = tag_of(from, token, payload.call, unit);
      if (std::memcmp(&bytes[start + first], tag.data(), unit_bytes) == 0) continue;
      if (torn.empty()) {
        torn = "row " + std::to_string(row) + ", unit " + std::to_string(unit) + " holds " +
               told_by(bytes, start + first, unit);
      }
    }
    if (misplaced.empty() &&
        (sources[at(2 * order[row])] != from || sources[at(2 * order[row] + 1)] != token)) {
      misplaced = "row " + std::to_string(row) + " is " + text_of({zone, from, token}, world);
    }
    const auto found = wanted.find({zone, from, token});
    if (found != wanted.end() && --found->second == 0) {
      wanted.erase(found);
    } else if (found == wanted.end() && extra.empty()) {
      extra = "row " + std::to_string(row) + " is " + text_of({zone, from, token}, world);
    }
  }
  judge.holds("EXCHANGE-1a", "units of a row", torn.empty(),
              "one rank, token and call, units in order", torn);
  judge.holds("EXCHANGE-1b", "rows that were not selected, or came before", extra.empty(), "none",
              extra);
  judge.holds(layout_clause(world), "order of the rows", misplaced.empty(),
              "that of the declared layout", misplaced);
  judge.holds("EXCHANGE-1a", "rows that are missing", wanted.empty(), "none",
              wanted.empty() ? "none" : text_of(wanted.begin()->first, world));
}

}  // namespace

const Payload& tagged_payload(const World& world, const Routing& routing, const PayloadForm& form,
                              Index call) {
  return world.group.shared<Payload>("payload " + std::to_string(call), [&] {
    Payload payload{form, call, {}};
    for (Index from = 0; from < world.ranks; ++from) {
      payload.sent.push_back(sent_by(routing, form, world.settings.top_k, from, call));
    }
    return payload;
  });
}

void judge_dispatch(World& world, const Routing& routing, const Payload& payload,
                    const DispatchBuffers& got, const Order& order) {
  const reference::ExchangePlan& plan = routing.plan;
  judge_tags(world, routing, payload, got, order);
  judge_bytes(world, routing, order, "EXCHANGE-2a", "rows", *got.rows,
              reference::dispatch_rows(plan, world.rank, spans_of(payload, &Sent::x),
                                       at(payload.form.row_bytes())));
  if (got.row_scales != nullptr) {
    judge_bytes(world, routing, order, "EXCHANGE-2b", "row_scales", *got.row_scales,
                reference::dispatch_rows(plan, world.rank, spans_of(payload, &Sent::scales),
                                         at(payload.form.scale_bytes)));
  }
  if (got.row_weights != nullptr) {
    judge_bytes(world, routing, order, "EXCHANGE-2b", "row_weights", *got.row_weights,
                reference::dispatch_weights(plan, world.rank, spans_of(payload, &Sent::weights),
                                            sizeof(float)));
  }
  if (got.row_ids == nullptr) return;
  const Index top_k = world.settings.top_k;
  const std::vector<Index> ids = reference::dispatch_ids(plan, world.rank);
  std::vector<Index> expected(at(got.row_ids->size()), -1);
  for (std::size_t row = 0; row < order.size(); ++row) {
    for (Index j = 0; j < top_k; ++j) {
      expected[row * at(top_k) + at(j)] = ids[at(order[row] * top_k + j)];
    }
  }
  world.run.judge().exact("EXCHANGE-3b", "row_ids", *got.row_ids, expected,
                          row_elements(world, routing, order, top_k, RowsOf::in_use));
  judge_tail_ids(world, routing, "row_ids", *got.row_ids);
}

}  // namespace dropless::conformance
