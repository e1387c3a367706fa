// SPDX-License-Identifier: Apache-2.0
// What the forward pass of the layer keeps for the backward pass, and the forward pass itself.
#pragma once

#include <memory>

#include "optimized/cuda/layer_problem.h"

namespace dropless::cuda {

// One set of experts: the routed ones over their zones, or the shared one over all tokens.
struct ExpertTrace {
  dropless_tensor offsets;          // [E+1]
  dropless_tensor gate_up, hidden;  // [N,2I] or [N,I]; [N,I], after early weights
  dropless_tensor out;              // [N,H]
};

// N = T * K: how many of the rows are used is known to the device alone.
struct LayerTrace {
  dropless_tensor logits, weights, ids, counts;  // [T,E], [T,K], [T,K] i64, [E] i64
  dropless_tensor row_map, source;               // [T,K], [N]
  dropless_tensor rows, row_weights;             // [N,H] as the experts see them, [N]
  ExpertTrace routed, shared;
  dropless_tensor shared_gate;  // [T], rank 0 without a gate

  [[nodiscard]] float* gate() const {
    return shared_gate.rank > 0 ? static_cast<float*>(shared_gate.data) : nullptr;
  }
};

// The handle that layer_forward hands out. States are used again on the stream that they were
// released on, so that a training step allocates nothing and may be captured.
struct LayerState {
  std::pair<int, cudaStream_t> home;
  Index tokens = 0, hidden = 0;
  bool has_trace = false;  // not with recomputation
  LayerTrace trace;
  Workspace memory;
  // With offload the trace is kept here instead; pinned.
  std::byte* host = nullptr;
  std::size_t host_bytes = 0;
  bool is_on_host = false;
};
// Copies a trace in scratch memory to the host, and back into scratch memory of another call. Both
// are ordered on the stream; nothing waits.
void keep_on_host(Call& call, LayerState& state, const LayerTrace& trace);
LayerTrace bring_back(Call& call, const LayerState& state);

struct GiveBack {
  void operator()(LayerState* state) const noexcept;
};
using KeptState = std::unique_ptr<LayerState, GiveBack>;
KeptState take_state(const Call& call);

// Router to expert outputs, into `memory`; the same input gives the same bits.
LayerTrace run_layer(Call& call, const LayerProblem& problem, Workspace& memory);

// y = combined experts + shared expert, rounded once.
void write_output(Call& call, const LayerProblem& problem, const LayerTrace& trace,
                  const dropless_tensor& y);

// Every gradient that is wanted, from what the forward pass kept. d_logits may be null.
void run_backward(Call& call, const LayerProblem& problem, const LayerTrace& trace,
                  const dropless_layer_parameters& gradients, const dropless_tensor& d_y,
                  const dropless_tensor* d_logits, const dropless_tensor& d_x);

// A dense tensor in `memory`, contents undefined.
dropless_tensor make(Call& call, Workspace& memory, dropless_dtype dtype,
                     std::initializer_list<Index> shape);
// The checked form of one of our own tensors.
Tensor view(const dropless_tensor& tensor);

}  // namespace dropless::cuda
