// SPDX-License-Identifier: Apache-2.0
// One handle of an exchange as one rank uses it: the calls of the contract with buffers around
// them, and what came out in the order of the reference.
//
//     RankHandle handle(world);
//     const PlanBuffers plan = handle.plan(routing);
//     judge_plan(world, routing, plan);
//     const DispatchBuffers got = handle.dispatch(routing, sent);
//     const Order order = received_order(world, routing, got);
//     const Buffer& y = handle.combine(routing, order, rows, ...);
//     handle.close();
#pragma once

#include <functional>

#include "conformance/cases/exchange/setup.h"

namespace dropless::conformance {

struct PlanBuffers {
  Buffer *counts, *offsets, *rows_per_source, *global_counts, *total_rows, *demand;
  Buffer *sent_bytes, *sent_node_bytes, *first_overflow, *unseen, *dropped;
  bool checked = false;
};

struct PlanRequest {
  dropless_dtype id_dtype = DROPLESS_I32;
  Index step = 0;
  bool last_step = false;
};

// What one rank puts into a dispatch. Empty scales or weights: none are sent.
struct Sent {
  dropless_dtype dtype = DROPLESS_BF16;
  Index hidden = 0;         // elements of a row
  Bytes x;                  // [T, hidden]
  Bytes scales;             // [T, scale_bytes of the settings]
  Bytes weights;            // [T,K] fp32, bit by bit
  bool unweighted = false;  // none, not even of a rank without tokens
};

struct DispatchBuffers {
  Buffer* rows = nullptr;
  Buffer* row_scales = nullptr;   // null: none were sent
  Buffer* row_weights = nullptr;  // null: none were sent
  Buffer* row_ids = nullptr;      // flat layouts only
  Buffer* row_source = nullptr;   // unordered layouts only
};

// Row of the reference's plan that each row in use is, [total]; ascending from 0 in ordered
// layouts.
using Order = std::vector<Index>;

class RankHandle {
 public:
  // Opens it with the settings of the world; that must succeed.
  explicit RankHandle(World& world, double timeout_seconds = 10);
  RankHandle(const RankHandle&) = delete;
  RankHandle& operator=(const RankHandle&) = delete;
  // A handle that the case left open is closed without being judged.
  ~RankHandle();
  void close();  // must succeed

  // Everything that the contract lets one ask for. plan, dispatch and combine must succeed, try_...
  // return the status.
  PlanBuffers plan(const Routing& routing, const PlanRequest& request = {});
  dropless_status try_plan(const Routing& routing, PlanBuffers& out,
                           const PlanRequest& request = {});

  DispatchBuffers dispatch(const Routing& routing, const Sent& sent);
  dropless_status try_dispatch(const Routing& routing, const Sent& sent, DispatchBuffers& out);
  // rows and d_rows as dispatched, [N_max,H].
  Buffer& combine(const Routing& routing, const Buffer& rows, const Buffer* row_weights,
                  dropless_dtype y_dtype);
  dropless_status try_combine(const Routing& routing, const Buffer& rows, const Buffer* row_weights,
                              Buffer& y);
  void dispatch_backward(const Buffer& d_rows, const Buffer* d_row_weights, const Buffer& d_x,
                         const Buffer* d_weights);
  void combine_backward(const Buffer& d_y, const Buffer* rows, const Buffer* row_weights,
                        const Buffer& d_rows, const Buffer* d_row_weights);

  // Closes it after a time-out: not judged, except that it comes back.
  void abandon();
  [[nodiscard]] dropless_exchange* exchange() const { return exchange_; }

 private:
  PlanBuffers plan_buffers() const;

  World& world_;
  dropless_exchange* exchange_ = nullptr;
  Buffer* x_ = nullptr;  // of the last dispatch: equal shapes come from the same address again
};

// Settings of this rank as the contract takes them; tensors live as long as the buffers of the run.
struct OpenSettings {
  OpenSettings(World& world, double timeout_seconds);
  dropless_exchange_settings settings;
};

// Judges everything a plan returns by the reference: EXCHANGE-4a to 5c.
// Without its demand where a check may report another one.
void judge_plan(World& world, const Routing& routing, const PlanBuffers& got, bool demand = true);
// Finds the order of the rows (EXCHANGE-3e); a source that cannot be is a failure, and such rows
// get what is left over.
Order received_order(World& world, const Routing& routing, const DispatchBuffers& got);

// Per element of a [N_max, columns] buffer.
enum class RowsOf { in_use, real, padding, tail };
Judged row_elements(const World& world, const Routing& routing, const Order& order, Index columns,
                    RowsOf which);
// EXCHANGE-3f: rows beyond the total follow the tail rule; ids and sources are untouched or -1.
void judge_tail(World& world, const Routing& routing, std::string_view what, const Buffer& got);
void judge_tail_ids(World& world, const Routing& routing, std::string_view what, const Buffer& got);

// [N_max, columns] in the order of the buffer from [total, columns] in the reference's; everything
// that is not a real row becomes `elsewhere`.
std::vector<double> arranged(const World& world, const Routing& routing, const Order& order,
                             Index columns, const std::vector<double>& by_reference,
                             double elsewhere);

}  // namespace dropless::conformance
