// SPDX-License-Identifier: Apache-2.0
// One step of one rank against the plain loops: counts, tags in every 16-byte unit, weights,
// scales, sums and their gradients on integers, where every comparison is exact.
#include <cstdlib>
#include <set>

#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

constexpr Index units = 3;  // of 16 bytes in a row
constexpr Index tail = 5;   // rows beyond the plan
constexpr Index scale_bytes = 3;
constexpr double poison = -99;

double weight_of(int source, Index token, Index k) {
  return static_cast<double>(1 + source + 16 * token + 4096 * k);
}
double scale_of(int source, Index token, Index s) {
  return static_cast<double>((source * 7 + token * 3 + s * 101 + 1) % 256);
}
// Small integers at the experts and at home.
double expert_value(int rank, Index row, Index column) {
  return static_cast<double>((rank * 5 + row * 3 + column) % 7 - 3);
}
double home_value(int rank, Index token, Index column) {
  return static_cast<double>((rank * 3 + token * 5 + column * 2) % 9 - 4);
}
double row_weight(int rank, Index row) {
  return static_cast<double>((rank + row) % 4 + 1);
}

class Check {
 public:
  Check(Rank& rank, const Routing& routing, int generation)
      : rank_(rank), g_(routing), generation_(generation), me_(rank.rank()) {
    for (int r = 0; r < g_.ranks; ++r) all_.push_back(expected_rows(g_, r));
    most_ = static_cast<Index>(mine().size()) + tail;
  }

  std::string run() {
    plan();
    dispatch();
    dispatch();  // repeats are legal and give the same
    combine();
    combine();
    dispatch_backward();
    combine_backward();
    return wrong_;
  }

 private:
  const std::vector<Row>& mine() const { return all_[static_cast<std::size_t>(me_)]; }

  template <class T>
  void equal(const T& got, const T& wanted, const std::string& what) {
    if (got == wanted || !wrong_.empty()) return;
    if constexpr (std::is_arithmetic_v<T>) {
      wrong_ = what + ": got " + std::to_string(got) + ", expected " + std::to_string(wanted);
    } else {
      wrong_ = what + " differs";
    }
    wrong_ = "rank " + std::to_string(me_) + ": " + wrong_;
  }
  void ok(const Outcome& outcome, const char* what) {
    if (outcome.status == DROPLESS_OK || !wrong_.empty()) return;
    wrong_ = "rank " + std::to_string(me_) + ": " + what + ": " + outcome.message;
  }
  static std::string at(const char* what, Index row, Index column) {
    return std::string(what) + " [" + std::to_string(row) + ", " + std::to_string(column) + "]";
  }

  void plan() {
    const PlanResult p = rank_.plan(g_.ids_of(me_));
    ok(p.outcome, "plan");
    std::vector<Index> pairs(static_cast<std::size_t>(g_.slots()), 0);
    std::vector<Index> sources(static_cast<std::size_t>(g_.ranks), 0);
    for (const Row& row : mine()) {
      if (row.source < 0) continue;
      ++sources[static_cast<std::size_t>(row.source)];
      for (const auto& part : row.parts) ++pairs[static_cast<std::size_t>(part.slot)];
    }
    std::vector<Index> offsets = {0};
    for (const Index n : pairs) {
      offsets.push_back(offsets.back() + (n + g_.alignment - 1) / g_.alignment * g_.alignment);
    }
    std::vector<Index> global(static_cast<std::size_t>(g_.experts), 0);
    Index demand = 0, sent = 0, node_sent = 0;
    for (int r = 0; r < g_.ranks; ++r) {
      demand = std::max(demand, static_cast<Index>(all_[static_cast<std::size_t>(r)].size()));
      for (const Index id : g_.ids[static_cast<std::size_t>(r)]) {
        if (id >= 0) ++global[static_cast<std::size_t>(id)];
      }
    }
    for (Index t = 0; t < g_.tokens(me_); ++t) {
      std::set<int> ranks, nodes;
      for (int r = 0; r < g_.ranks; ++r) {
        for (Index k = 0; k < g_.top_k; ++k) {
          if (g_.slot_on(r, me_, t, k) < 0) continue;
          if (r != me_) ranks.insert(r);
          if (g_.node(r) != g_.node(me_)) nodes.insert(g_.node(r));
        }
      }
      sent += static_cast<Index>(ranks.size());
      node_sent += static_cast<Index>(nodes.size());
    }
    const Index bytes = rank_.settings.row_bytes + rank_.settings.scale_bytes;
    equal(p.pairs, pairs, "tokens_per_local_expert");
    equal(p.offsets, offsets, "offsets");
    equal(p.rows_per_source, sources, "rows_per_source");
    equal(p.global_counts, global, "global_counts");
    equal(p.total, static_cast<Index>(mine().size()), "total_rows");
    equal(p.demand, demand, "demand");
    equal(p.sent_bytes, sent * bytes, "sent_bytes");
    equal(p.sent_node_bytes, node_sent * bytes, "sent_node_bytes");
    equal(p.dropped, Index{0}, "dropped_pairs");
  }

  // A tag names its source, token, unit and call.
  Array tagged() const {
    Array x(DROPLESS_I32, {g_.tokens(me_), 4 * units}, 3);
    for (Index t = 0; t < g_.tokens(me_); ++t) {
      for (Index u = 0; u < units; ++u) {
        const double tag[4] = {1.0 + me_, 1.0 + static_cast<double>(t),
                               1.0 + static_cast<double>(u), 1.0 * generation_};
        for (Index i = 0; i < 4; ++i) {
          x.view().store_integer_flat(static_cast<Index>(tag[i]), (t * units + u) * 4 + i);
        }
      }
    }
    return x;
  }

  void dispatch() {
    Array weights(DROPLESS_FP32, {g_.tokens(me_), g_.top_k});
    Array scales(DROPLESS_U8, {g_.tokens(me_), scale_bytes}, 2);
    std::vector<double> w, s;
    for (Index t = 0; t < g_.tokens(me_); ++t) {
      for (Index k = 0; k < g_.top_k; ++k) w.push_back(weight_of(me_, t, k));
      for (Index i = 0; i < scale_bytes; ++i) s.push_back(scale_of(me_, t, i));
    }
    weights.set(w), scales.set(s);
    const Array rows = Array(DROPLESS_I32, {most_, 4 * units}, 1).fill(poison);
    const Array row_weights =
        Array(DROPLESS_FP32, g_.expert_major ? Shape{most_} : Shape{most_, g_.top_k}).fill(poison);
    const Array row_scales = Array(DROPLESS_U8, {most_, scale_bytes}).fill(9);
    const Array row_ids = Array(DROPLESS_I32, {most_, g_.top_k}).fill(poison);
    const Array row_source = Array(DROPLESS_I32, {most_, 2}).fill(poison);
    ok(rank_.dispatch(tagged(), rows, &weights, &row_weights, &scales, &row_scales,
                      g_.expert_major ? nullptr : &row_ids, &row_source),
       "dispatch");
    for (Index r = 0; r < most_; ++r)
      check_row(r, rows, row_weights, row_scales, row_ids, row_source);
  }

  void check_row(Index r, const Array& rows, const Array& row_weights, const Array& row_scales,
                 const Array& row_ids, const Array& row_source) {
    const bool beyond = r >= static_cast<Index>(mine().size());
    const Row row = beyond ? Row{} : mine()[static_cast<std::size_t>(r)];
    const bool padding = !beyond && row.source < 0;
    for (Index u = 0; u < units; ++u) {
      const double tag[4] = {1.0 + row.source, 1.0 + static_cast<double>(row.token),
                             1.0 + static_cast<double>(u), 1.0 * generation_};
      for (Index i = 0; i < 4; ++i) {
        const Index flat = (r * units + u) * 4 + i;
        const double wanted = beyond ? poison : padding ? 0 : tag[i];
        equal(static_cast<double>(rows.view().load_integer_flat(flat)), wanted,
              at("rows", r, 4 * u + i));
      }
    }
    for (Index i = 0; i < scale_bytes; ++i) {
      const double wanted = beyond ? 9 : padding ? 0 : scale_of(row.source, row.token, i);
      equal(static_cast<double>(row_scales.view().load_integer_flat(r * scale_bytes + i)), wanted,
            at("row_scales", r, i));
    }
    const double source = beyond ? poison : row.source;
    equal(static_cast<double>(row_source.view().load_integer_flat(2 * r)), source,
          at("row_source", r, 0));
    equal(static_cast<double>(row_source.view().load_integer_flat(2 * r + 1)),
          beyond ? poison : static_cast<double>(row.token), at("row_source", r, 1));
    if (g_.expert_major) {
      const double wanted = beyond    ? poison
                            : padding ? 0
                                      : weight_of(row.source, row.token, row.parts[0].k);
      equal(row_weights.at(r), wanted, at("row_weights", r, 0));
      return;
    }
    std::vector<double> w(static_cast<std::size_t>(g_.top_k), beyond ? poison : 0);
    std::vector<double> ids(static_cast<std::size_t>(g_.top_k), beyond ? poison : -1);
    for (std::size_t p = 0; p < row.parts.size(); ++p) {
      const auto column = static_cast<std::size_t>(column_of(g_, row, p));
      w[column] = weight_of(row.source, row.token, row.parts[p].k);
      ids[column] = static_cast<double>(row.parts[p].slot);
    }
    for (Index k = 0; k < g_.top_k; ++k) {
      equal(row_weights.at(r * g_.top_k + k), w[static_cast<std::size_t>(k)],
            at("row_weights", r, k));
      equal(static_cast<double>(row_ids.view().load_integer_flat(r * g_.top_k + k)),
            ids[static_cast<std::size_t>(k)], at("row_ids", r, k));
    }
  }

  // Sum over all rows of all ranks that belong to a token of this rank.
  template <class Body>
  void for_home(const Body& body) {
    for (int r = 0; r < g_.ranks; ++r) {
      const auto& rows = all_[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].source == me_) body(r, static_cast<Index>(i), rows[i]);
      }
    }
  }

  // NaN in padding rows must not leak (EXCHANGE-4).
  Array expert_rows(dropless_dtype dtype) const {
    Array rows(dtype, {most_, width}, 2);
    std::vector<double> values;
    for (Index r = 0; r < most_; ++r) {
      const bool real =
          r < static_cast<Index>(mine().size()) && mine()[static_cast<std::size_t>(r)].source >= 0;
      for (Index c = 0; c < width; ++c) {
        values.push_back(real ? expert_value(me_, r, c) : std::numeric_limits<double>::quiet_NaN());
      }
    }
    return rows.set(values);
  }
  Array expert_weights() const {
    std::vector<double> values;
    for (Index r = 0; r < most_; ++r) values.push_back(row_weight(me_, r));
    return Array(DROPLESS_FP32, {most_}).set(values);
  }
  std::vector<double> expected_home(bool weighted) {
    std::vector<double> y(static_cast<std::size_t>(g_.tokens(me_) * width), 0);
    for_home([&](int r, Index i, const Row& row) {
      for (Index c = 0; c < width; ++c) {
        y[static_cast<std::size_t>(row.token * width + c)] +=
            expert_value(r, i, c) * (weighted ? row_weight(r, i) : 1);
      }
    });
    return y;
  }

  void combine() {
    for (const dropless_dtype dtype : {DROPLESS_FP32, DROPLESS_BF16}) {
      const Array y = Array(dtype, {g_.tokens(me_), width}, 1).fill(poison);
      const Array weights = expert_weights();
      ok(rank_.combine(expert_rows(dtype), y, g_.weighted ? &weights : nullptr), "combine");
      equal(y.values(), expected_home(g_.weighted), "y");
    }
  }

  void dispatch_backward() {
    const Array d_x = Array(DROPLESS_FP32, {g_.tokens(me_), width}).fill(poison);
    const Array d_weights = Array(DROPLESS_FP32, {g_.tokens(me_), g_.top_k}).fill(poison);
    // Each weight gradient says where it comes from.
    const auto gradient = [](int r, Index row, Index column) {
      return static_cast<double>(1 + r + 16 * row + 8192 * column);
    };
    Array d_row_weights(DROPLESS_FP32, g_.expert_major ? Shape{most_} : Shape{most_, g_.top_k});
    std::vector<double> values;
    for (Index r = 0; r < most_; ++r) {
      for (Index k = 0; k < (g_.expert_major ? 1 : g_.top_k); ++k) {
        values.push_back(gradient(me_, r, k));
      }
    }
    d_row_weights.set(values);
    ok(rank_.dispatch_backward(expert_rows(DROPLESS_BF16), d_x, &d_row_weights, &d_weights),
       "dispatch_backward");
    equal(d_x.values(), expected_home(false), "d_x");
    std::vector<double> wanted(static_cast<std::size_t>(g_.tokens(me_) * g_.top_k), 0);
    for_home([&](int r, Index i, const Row& row) {
      for (std::size_t p = 0; p < row.parts.size(); ++p) {
        wanted[static_cast<std::size_t>(row.token * g_.top_k + row.parts[p].k)] =
            gradient(r, i, g_.expert_major ? 0 : column_of(g_, row, p));
      }
    });
    equal(d_weights.values(), wanted, "d_weights");
  }

  void combine_backward() {
    std::vector<double> values;
    for (Index t = 0; t < g_.tokens(me_); ++t) {
      for (Index c = 0; c < width; ++c) values.push_back(home_value(me_, t, c));
    }
    const Array d_y = Array(DROPLESS_FP32, {g_.tokens(me_), width}, 2).set(values);
    const Array d_rows = Array(DROPLESS_BF16, {most_, width}).fill(poison);
    const Array weights = expert_weights(), rows = expert_rows(DROPLESS_FP32);
    const Array d_weights = Array(DROPLESS_FP32, {most_}).fill(poison);
    ok(g_.weighted ? rank_.combine_backward(d_y, d_rows, &rows, &weights, &d_weights)
                   : rank_.combine_backward(d_y, d_rows),
       "combine_backward");
    for (Index r = 0; r < most_; ++r) {
      const bool beyond = r >= static_cast<Index>(mine().size());
      const Row row = beyond ? Row{} : mine()[static_cast<std::size_t>(r)];
      double dot = 0;
      for (Index c = 0; c < width; ++c) {
        const double d = row.source < 0 ? 0 : home_value(row.source, row.token, c);
        dot += row.source < 0 ? 0 : d * expert_value(me_, r, c);
        equal(d_rows.at(r * width + c),
              beyond ? poison : d * (g_.weighted ? row_weight(me_, r) : 1), at("d_rows", r, c));
      }
      if (g_.weighted) equal(d_weights.at(r), beyond ? poison : dot, at("d_row_weights", r, 0));
    }
  }

  static constexpr Index width = 5;
  Rank& rank_;
  const Routing& g_;
  int generation_, me_;
  std::vector<std::vector<Row>> all_;
  Index most_;
  std::string wrong_;
};

}  // namespace

std::string check_step(Rank& rank, const Routing& routing, int generation) {
  return Check(rank, routing, generation).run();
}

std::string check_all(int rank, Gathering& gathering, Routing routing, const char* transport) {
  Rank mine(routing.profile(), rank, routing.ranks, gathering);
  std::vector<Array> memory;
  routing.complete(mine.settings, memory);
  const Outcome opened = mine.open();
  if (opened.status != DROPLESS_OK) return "open: " + opened.message;
  if (opened.path != std::string("cpu/exchange/") + transport) return "path: " + opened.path;
  // Large, small, none at all on the last rank, large again: no row of an older step shows up.
  const Routing large = routing;
  for (int generation = 1; generation <= 4; ++generation) {
    Routing now = large;
    for (int r = 0; r < now.ranks; ++r) {
      auto& ids = now.ids[static_cast<std::size_t>(r)];
      const Index keep = generation == 2   ? now.tokens(r) / 3
                         : generation == 3 ? (r + 1 == now.ranks ? 0 : now.tokens(r))
                                           : now.tokens(r);
      ids.resize(static_cast<std::size_t>(keep * now.top_k));
    }
    const std::string wrong = check_step(mine, now, generation);
    if (!wrong.empty()) return "step " + std::to_string(generation) + ": " + wrong;
  }
  const Outcome closed = mine.close();
  return closed.status == DROPLESS_OK ? "" : "close: " + closed.message;
}

}  // namespace dropless::cpu::testing
