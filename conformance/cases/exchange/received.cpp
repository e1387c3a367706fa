// SPDX-License-Identifier: Apache-2.0
// What a rank received: its plan against the reference's, and the order of its rows.
#include <map>

#include "conformance/cases/exchange/handle.h"

namespace dropless::conformance {
namespace {

std::vector<Index> one(Index value) {
  return {value};
}

// Zone of a row of the reference's plan; flat layouts are one zone.
Index zone_of(const World& world, const reference::ReceivedRows& received, Index row) {
  if (world.flat()) return 0;
  Index zone = 0;
  while (received.offsets[at(zone + 1)] <= row) ++zone;
  return zone;
}

std::vector<Index> ascending(Index count) {
  std::vector<Index> order;
  for (Index i = 0; i < count; ++i) order.push_back(i);
  return order;
}

}  // namespace

void judge_plan(World& world, const Routing& routing, const PlanBuffers& got, bool demand) {
  Judge& judge = world.run.judge();
  const reference::ReceivedRows& expected = routing.received(world.rank);
  judge.exact("EXCHANGE-4a", "tokens_per_local_expert", *got.counts,
              expected.tokens_per_local_expert);
  judge.exact("EXCHANGE-4b", "offsets", *got.offsets, expected.offsets);
  // A flat layout that does not deduplicate has too many rows.
  const char* rows_clause = world.flat() ? "EXCHANGE-5a" : "EXCHANGE-4c";
  judge.exact(rows_clause, "rows_per_source", *got.rows_per_source, expected.rows_per_source);
  judge.exact(rows_clause, "total_rows", *got.total_rows, one(expected.rows()));
  if (demand) judge.exact("EXCHANGE-4c", "demand", *got.demand, one(routing.plan.demand));
  judge.exact("EXCHANGE-4d", "global_counts", *got.global_counts, routing.plan.global_counts);
  const auto& traffic = world.group.shared<reference::ExchangeTraffic>(
      "traffic " + std::to_string(reinterpret_cast<std::uintptr_t>(&routing)), [&] {
        return reference::exchange_traffic(routing.plan,
                                           world.settings.row_bytes + world.settings.scale_bytes);
      });
  judge.exact("EXCHANGE-5b", "sent_bytes", *got.sent_bytes, one(traffic.sent_bytes(world.rank)));
  judge.exact("EXCHANGE-5c", "sent_node_bytes", *got.sent_node_bytes,
              one(traffic.sent_node_bytes(world.rank)));
}

Order received_order(World& world, const Routing& routing, const DispatchBuffers& got) {
  const reference::ReceivedRows& received = routing.received(world.rank);
  const Index total = received.rows();
  if (!world.unordered()) return ascending(total);

  // The reference's rows by what names them; padding rows of a zone have the same name.
  using Name = std::array<Index, 3>;  // zone, source rank, token
  const std::vector<Index> wanted = reference::dispatch_sources(routing.plan, world.rank);
  std::map<Name, std::vector<Index>> by_name;
  for (Index row = total; row-- > 0;) {
    by_name[{zone_of(world, received, row), wanted[at(2 * row)], wanted[at(2 * row + 1)]}]
        .push_back(row);
  }
  const std::vector<Index> told = got.row_source->integers();
  Order order(at(total), -1);
  std::vector<bool> taken(at(total), false);
  Index wrong = -1;
  for (Index row = 0; row < total; ++row) {
    const auto found =
        by_name.find({zone_of(world, received, row), told[at(2 * row)], told[at(2 * row + 1)]});
    if (found == by_name.end() || found->second.empty()) {
      if (wrong < 0) wrong = row;
      continue;
    }
    order[at(row)] = found->second.back();
    taken[at(found->second.back())] = true;
    found->second.pop_back();
  }
  std::string got_text = "all as selected";
  if (wrong >= 0) {
    got_text = "rank " + std::to_string(told[at(2 * wrong)]) + ", token " +
               std::to_string(told[at(2 * wrong + 1)]) + ", which has no row left here";
  }
  world.run.judge().holds("EXCHANGE-3e", "row_source", wrong < 0,
                          "every selected (source rank, token) once", got_text,
                          wrong < 0 ? "" : "[" + std::to_string(wrong) + "]");
  Index left = 0;
  for (Index& row : order) {
    if (row >= 0) continue;
    while (taken[at(left)]) ++left;
    taken[at(left)] = true;
    row = left;
  }
  return order;
}

Judged row_elements(const World& world, const Routing& routing, const Order& order, Index columns,
                    RowsOf which) {
  const Index rows = world.buffer_rows(routing), total = static_cast<Index>(order.size());
  const reference::ReceivedRows& received = routing.received(world.rank);
  Judged flags(at(rows * columns), false);
  for (Index row = 0; row < rows; ++row) {
    const bool in_use = row < total;
    const bool padding = in_use && received.source[at(order[at(row)])] < 0;
    const bool wanted = which == RowsOf::in_use    ? in_use
                        : which == RowsOf::real    ? in_use && !padding
                        : which == RowsOf::padding ? padding
                                                   : !in_use;
    if (!wanted) continue;
    for (Index c = 0; c < columns; ++c) flags[at(row * columns + c)] = true;
  }
  return flags;
}

namespace {

Judged tail_elements(const World& world, const Routing& routing, const Buffer& buffer) {
  const Index rows = world.buffer_rows(routing);
  const Index columns = rows == 0 ? 0 : buffer.size() / rows;
  return row_elements(world, routing, ascending(routing.received(world.rank).rows()), columns,
                      RowsOf::tail);
}

}  // namespace

void judge_tail(World& world, const Routing& routing, std::string_view what, const Buffer& got) {
  const Judged tail = tail_elements(world, routing, got);
  if (world.run.profile().tail_rows == DROPLESS_TAIL_UNTOUCHED) {
    world.run.judge().untouched("EXCHANGE-3f", what, got, tail);
  } else {
    const Bytes zero(at(got.size()) * dtype_bytes(got.dtype()), 0);
    world.run.judge().exact_bytes("EXCHANGE-3f", what, got, zero, tail);
  }
}

void judge_tail_ids(World& world, const Routing& routing, std::string_view what,
                    const Buffer& got) {
  const Judged tail = tail_elements(world, routing, got);
  const std::vector<Index> values = got.integers();
  const std::vector<bool> untouched = got.untouched();
  Index wrong = -1;
  for (std::size_t i = 0; i < values.size() && wrong < 0; ++i) {
    if (tail[i] && !untouched[i] && values[i] != -1) wrong = static_cast<Index>(i);
  }
  world.run.judge().holds("EXCHANGE-3f", std::string(what) + " beyond the total", wrong < 0,
                          "untouched or -1", wrong < 0 ? "so" : std::to_string(values[at(wrong)]),
                          wrong < 0 ? "" : "element " + std::to_string(wrong));
}

std::vector<double> arranged(const World& world, const Routing& routing, const Order& order,
                             Index columns, const std::vector<double>& by_reference,
                             double elsewhere) {
  const Index rows = world.buffer_rows(routing);
  const reference::ReceivedRows& received = routing.received(world.rank);
  std::vector<double> out(at(rows * columns), elsewhere);
  for (std::size_t row = 0; row < order.size(); ++row) {
    if (received.source[at(order[row])] < 0) continue;
    for (Index c = 0; c < columns; ++c) {
      out[row * at(columns) + at(c)] = by_reference[at(order[row] * columns + c)];
    }
  }
  return out;
}

}  // namespace dropless::conformance
