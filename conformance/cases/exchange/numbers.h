// SPDX-License-Identifier: Apache-2.0
// Numbers on rows and tokens of all ranks, in the order of the reference, and what a sum over ranks
// is judged by.
#pragma once

#include <functional>

#include "conformance/cases/exchange/payload.h"

namespace dropless::conformance {

using RankValues = std::vector<std::vector<double>>;  // [R]

dropless_dtype real_dtype(const std::string& word);  // fp32 or bf16
// The data regimes that the families of numbers take, and their parameter.
Parameter data_parameter();

// exact: integers times powers of two whose sums over K rows, also times exact weights, are exact
// in fp32 but not in bf16; otherwise a regime of data.h. [rows or tokens of a rank, columns].
const RankValues& row_values(const World& world, const Routing& routing, const std::string& name,
                             Index columns, const std::string& regime, dropless_dtype dtype);
const RankValues& token_values(const World& world, const Routing& routing, const std::string& name,
                               Index columns, const std::string& regime, dropless_dtype dtype);
// Weights of rows [N]: eighths up to 15/8 when exact, otherwise fp32 in (0, 1].
const RankValues& row_weight_values(const World& world, const Routing& routing,
                                    const std::string& name, const std::string& regime);
std::vector<reference::Input> inputs_of(const RankValues& values);

// Small integers on rows or tokens: dot products of H of them are exact.
const RankValues& row_integers(const World& world, const Routing& routing, const std::string& name,
                               Index columns);
const RankValues& token_integers(const World& world, const Routing& routing,
                                 const std::string& name, Index columns);

// EXCHANGE-6a to 6e of a [T_r,H] sum over ranks.
void judge_combined(World& world, const Routing& routing, std::string_view clause_of_bound,
                    std::string_view what, const Buffer& got, const reference::Combined& expected,
                    dropless_dtype payload, bool exact);

// One step of a handle: plan, dispatch of tags and combine of exact numbers, all judged. Calls and
// steps are numbered over the case.
struct StepResult {
  Bytes rows, row_weights, y;
};
StepResult run_step(World& world, RankHandle& handle, const Routing& routing, Index call,
                    const PlanRequest& request = {});
// With rows of another length.
StepResult run_step(World& world, RankHandle& handle, const Routing& routing, Index call,
                    const PlanRequest& request, Index hidden);
// Its two halves after the plan.
struct Dispatched {
  DispatchBuffers got;
  Order order;
};
Dispatched run_dispatch(World& world, RankHandle& handle, const Routing& routing, Index call);
Buffer& run_combine(World& world, RankHandle& handle, const Routing& routing, const Order& order,
                    Index call);
// The form of the payload of these steps, and what their settings must have room for.
PayloadForm step_form(const World& world);
void make_room(World& world);
void make_room(World& world, Index hidden);
// What run_step judges, and `more`.
std::vector<std::string> step_clauses(std::vector<std::string> more);

// A part of a case that one clause is about: whatever fails in it, that clause is named as well.
void about(Judge& judge, std::string_view clause, std::string_view what,
           const std::function<void()>& part);

// Opens with room for rows of H fp32 elements, plans, and dispatches once, which tells the order.
struct Session {
  Session(World& world, const Routing& routing, Index hidden);
  RankHandle handle;
  Order order;
};

}  // namespace dropless::conformance
