// SPDX-License-Identifier: Apache-2.0
// The calls of one rank on one handle.
#include "conformance/cases/exchange/handle.h"

#include <cmath>
#include <limits>

namespace dropless::conformance {

OpenSettings::OpenSettings(World& world, double timeout_seconds) {
  const reference::ExchangeSettings& from = world.settings;
  Buffers& buffers = world.run.buffers();
  settings = make_args<dropless_exchange_settings>();
  settings.rank = static_cast<std::int32_t>(world.rank);
  settings.ranks = static_cast<std::int32_t>(world.ranks);
  settings.all_gather = all_gather_of_group;
  settings.all_gather_context = &world.group;
  settings.num_experts = from.num_experts;
  settings.top_k = from.top_k;
  settings.max_tokens = from.max_tokens;
  settings.row_bytes = from.row_bytes;
  settings.scale_bytes = from.scale_bytes;
  settings.ragged_buffer_factor = from.ragged_buffer_factor;
  settings.timeout_seconds = timeout_seconds;
  settings.overflow_check_every = from.overflow_check_every;
  if (!from.node_of_rank.empty()) {
    settings.node_of_rank =
        buffers.input("node_of_rank", DROPLESS_I32, {from.ranks}, from.node_of_rank).tensor();
  }
  if (!from.placement.empty()) {
    const Index slots = static_cast<Index>(from.placement.size()) / from.ranks;
    settings.placement =
        buffers.input("placement", DROPLESS_I32, {from.ranks, slots}, from.placement).tensor();
  }
}

RankHandle::RankHandle(World& world, double timeout_seconds) : world_(world) {
  const OpenSettings open(world, timeout_seconds);
  auto args = make_args<dropless_exchange_open_args>();
  args.settings = &open.settings;
  CaseRun& run = world.run;
  run.perform("exchange_open", run.implementation().exchange_open, args);
  exchange_ = args.exchange;
  if (exchange_ != nullptr) return;
  run.judge().holds("GENERAL-1", "exchange_open returns a handle", false, "a handle", "null");
  throw CaseEnded{};
}

RankHandle::~RankHandle() {
  abandon();
}

void RankHandle::abandon() {
  if (exchange_ == nullptr) return;
  // The case ended early: nothing of it is judged any more, and nothing may be thrown.
  const dropless_implementation& table = world_.run.implementation();
  if (table.exchange_close == nullptr) return;
  dropless_call call{};
  call.struct_size = sizeof call;
  call.struct_version = DROPLESS_STRUCT_VERSION;
  auto args = make_args<dropless_exchange_close_args>();
  args.exchange = exchange_;
  exchange_ = nullptr;
  table.exchange_close(table.context, &call, &args);
}

void RankHandle::close() {
  auto args = make_args<dropless_exchange_close_args>();
  args.exchange = exchange_;
  exchange_ = nullptr;
  CaseRun& run = world_.run;
  run.perform("exchange_close", run.implementation().exchange_close, args);
}

PlanBuffers RankHandle::plan_buffers() const {
  const reference::ExchangeSettings& settings = world_.settings;
  const Index slots = reference::exchange_topology(settings).slots;
  Buffers& buffers = world_.run.buffers();
  const Layout plausible{.poison = Poison::plausible};
  PlanBuffers out{};
  out.counts = &buffers.output("tokens_per_local_expert", DROPLESS_I64, {slots});
  out.offsets = &buffers.output("offsets", DROPLESS_I64, {slots + 1}, plausible);
  out.rows_per_source = &buffers.output("rows_per_source", DROPLESS_I64, {settings.ranks});
  out.global_counts =
      &buffers.output("global_counts", DROPLESS_I64, {settings.num_experts}, plausible);
  const auto scalar = [&](const char* name) {
    return &buffers.output(name, DROPLESS_I64, {1}, plausible);
  };
  out.total_rows = scalar("total_rows"), out.demand = scalar("demand");
  out.sent_bytes = scalar("sent_bytes"), out.sent_node_bytes = scalar("sent_node_bytes");
  out.first_overflow = scalar("first_overflow_step"), out.unseen = scalar("unseen_steps");
  out.dropped = scalar("dropped_pairs");
  return out;
}

dropless_status RankHandle::try_plan(const Routing& routing, PlanBuffers& out,
                                     const PlanRequest& request) {
  CaseRun& run = world_.run;
  Buffer& ids = run.buffers().input("ids", request.id_dtype,
                                    {routing.tokens(world_.rank), world_.settings.top_k},
                                    routing.ids[at(world_.rank)], world_.gaps(2));
  out = plan_buffers();
  auto args = make_args<dropless_exchange_plan_args>();
  args.exchange = exchange_;
  args.ids = ids.tensor();
  args.tokens_per_local_expert = out.counts->tensor();
  args.offsets = out.offsets->tensor();
  args.rows_per_source = out.rows_per_source->tensor();
  args.global_counts = out.global_counts->tensor();
  args.total_rows = out.total_rows->tensor();
  args.demand = out.demand->tensor();
  args.sent_bytes = out.sent_bytes->tensor();
  args.sent_node_bytes = out.sent_node_bytes->tensor();
  args.step = request.step;
  args.last_step = request.last_step ? 1 : 0;
  args.first_overflow_step = out.first_overflow->tensor();
  args.unseen_steps = out.unseen->tensor();
  args.dropped_pairs = out.dropped->tensor();
  const dropless_status status =
      run.request("exchange_plan", run.implementation().exchange_plan, args);
  out.checked = args.checked != 0;
  return status;
}

namespace {

// A rank with nothing to send or to receive makes its calls like any other, and no other rank fails
// because of it.
const char* clause_of(const World& world, const Routing& routing) {
  for (Index rank = 0; rank < world.ranks; ++rank) {
    if (routing.tokens(rank) == 0 || routing.received(rank).rows() == 0) return "EXCHANGE-8a";
  }
  return "GENERAL-1";
}

void demand_ok(World& world, const Routing& routing, const char* what, dropless_status status) {
  if (status == DROPLESS_OK) return;
  world.run.judge().holds(
      clause_of(world, routing), std::string(what) + " succeeds", false, "OK",
      "status " + std::to_string(status) + " (" + std::string(world.run.last_message()) + ")");
  throw CaseEnded{};
}

}  // namespace

PlanBuffers RankHandle::plan(const Routing& routing, const PlanRequest& request) {
  PlanBuffers out{};
  demand_ok(world_, routing, "exchange_plan", try_plan(routing, out, request));
  return out;
}

dropless_status RankHandle::try_dispatch(const Routing& routing, const Sent& sent,
                                         DispatchBuffers& out) {
  CaseRun& run = world_.run;
  Buffers& buffers = run.buffers();
  const Index tokens = routing.tokens(world_.rank), top_k = world_.settings.top_k;
  const Index scale_bytes = world_.settings.scale_bytes, rows = world_.buffer_rows(routing);
  const Layout gaps = world_.gaps(3), plausible_gaps = world_.gaps(3, Poison::plausible);
  auto args = make_args<dropless_exchange_dispatch_args>();
  args.exchange = exchange_;
  if (x_ != nullptr && x_->dtype() == sent.dtype && x_->shape() == Shape{tokens, sent.hidden}) {
    x_->overwrite(sent.x);
  } else {
    x_ = &buffers.input("x", sent.dtype, {tokens, sent.hidden}, sent.x, gaps);
  }
  args.x = x_->tensor();
  out = {};
  out.rows = &buffers.output("rows", sent.dtype, {rows, sent.hidden}, gaps);
  args.rows = out.rows->tensor();
  if (scale_bytes > 0) {
    // Both types that the contract allows.
    const dropless_dtype dtype = scale_bytes % 2 == 0 ? DROPLESS_U8 : DROPLESS_E8M0;
    args.scales = buffers.input("scales", dtype, {tokens, scale_bytes}, sent.scales, gaps).tensor();
    out.row_scales = &buffers.output("row_scales", dtype, {rows, scale_bytes}, plausible_gaps);
    args.row_scales = out.row_scales->tensor();
  }
  if (!sent.unweighted && (!sent.weights.empty() || tokens == 0)) {
    args.weights =
        buffers.input("weights", DROPLESS_FP32, {tokens, top_k}, sent.weights, gaps).tensor();
    const Shape shape = world_.flat() ? Shape{rows, top_k} : Shape{rows};
    out.row_weights = &buffers.output("row_weights", DROPLESS_FP32, shape, gaps);
    args.row_weights = out.row_weights->tensor();
  }
  if (world_.flat()) {
    out.row_ids = &buffers.output("row_ids", DROPLESS_I32, {rows, top_k}, plausible_gaps);
    args.row_ids = out.row_ids->tensor();
  }
  if (world_.unordered()) {
    out.row_source = &buffers.output("row_source", DROPLESS_I32, {rows, 2}, plausible_gaps);
    args.row_source = out.row_source->tensor();
  }
  return run.request("exchange_dispatch", run.implementation().exchange_dispatch, args);
}

DispatchBuffers RankHandle::dispatch(const Routing& routing, const Sent& sent) {
  DispatchBuffers out;
  demand_ok(world_, routing, "exchange_dispatch", try_dispatch(routing, sent, out));
  return out;
}

dropless_status RankHandle::try_combine(const Routing&, const Buffer& rows,
                                        const Buffer* row_weights, Buffer& y) {
  CaseRun& run = world_.run;
  auto args = make_args<dropless_exchange_combine_args>();
  args.exchange = exchange_;
  args.rows = rows.tensor();
  if (row_weights != nullptr) args.row_weights = row_weights->tensor();
  args.y = y.tensor();
  return run.request("exchange_combine", run.implementation().exchange_combine, args);
}

Buffer& RankHandle::combine(const Routing& routing, const Buffer& rows, const Buffer* row_weights,
                            dropless_dtype y_dtype) {
  Buffer& y = world_.run.buffers().output(
      "y", y_dtype, {routing.tokens(world_.rank), rows.shape().at(1)}, world_.gaps(5));
  demand_ok(world_, routing, "exchange_combine", try_combine(routing, rows, row_weights, y));
  return y;
}

void RankHandle::dispatch_backward(const Buffer& d_rows, const Buffer* d_row_weights,
                                   const Buffer& d_x, const Buffer* d_weights) {
  CaseRun& run = world_.run;
  auto args = make_args<dropless_exchange_dispatch_backward_args>();
  args.exchange = exchange_;
  args.d_rows = d_rows.tensor(), args.d_x = d_x.tensor();
  if (d_row_weights != nullptr) args.d_row_weights = d_row_weights->tensor();
  if (d_weights != nullptr) args.d_weights = d_weights->tensor();
  run.perform("exchange_dispatch_backward", run.implementation().exchange_dispatch_backward, args);
}

void RankHandle::combine_backward(const Buffer& d_y, const Buffer* rows, const Buffer* row_weights,
                                  const Buffer& d_rows, const Buffer* d_row_weights) {
  CaseRun& run = world_.run;
  auto args = make_args<dropless_exchange_combine_backward_args>();
  args.exchange = exchange_;
  args.d_y = d_y.tensor(), args.d_rows = d_rows.tensor();
  if (rows != nullptr) args.rows = rows->tensor();
  if (row_weights != nullptr) args.row_weights = row_weights->tensor();
  if (d_row_weights != nullptr) args.d_row_weights = d_row_weights->tensor();
  run.perform("exchange_combine_backward", run.implementation().exchange_combine_backward, args);
}

}  // namespace dropless::conformance
