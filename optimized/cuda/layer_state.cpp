// SPDX-License-Identifier: Apache-2.0
// Memory of the layer: states that wait to be used again, tensors in them.
#include "optimized/cuda/layer_state.h"

#include <dropless/formats/dtype.h>

#include <mutex>
#include <vector>

namespace dropless::cuda {
namespace {

struct Pool {
  std::mutex mutex;
  std::vector<LayerState*> idle;
};

Pool& pool() {
  static Pool* const all = new Pool;  // device memory must not be touched at the end of the process
  return *all;
}

Index bytes_of(const dropless_tensor& tensor) {
  Index bytes = element_bytes(tensor.dtype);
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) bytes *= tensor.shape[axis];
  return bytes;
}

// Every tensor of a trace that is there, and where it lies in the host's memory.
template <class Visit>
std::size_t for_each_tensor(LayerTrace& t, const Visit& visit) {
  std::size_t place = 0;
  for (dropless_tensor* tensor :
       {&t.logits, &t.weights, &t.ids, &t.counts, &t.row_map, &t.source, &t.rows, &t.row_weights,
        &t.routed.offsets, &t.routed.gate_up, &t.routed.hidden, &t.routed.out, &t.shared.offsets,
        &t.shared.gate_up, &t.shared.hidden, &t.shared.out, &t.shared_gate}) {
    if (tensor->rank == 0) continue;
    const auto bytes = static_cast<std::size_t>(bytes_of(*tensor));
    visit(*tensor, place, bytes);
    place += bytes;
  }
  return place;
}

}  // namespace

void keep_on_host(Call& call, LayerState& state, const LayerTrace& trace) {
  state.trace = trace;
  const std::size_t needed =
      for_each_tensor(state.trace, [](const dropless_tensor&, std::size_t, std::size_t) {});
  if (needed > state.host_bytes) {
    if (state.host != nullptr) check(cudaFreeHost(state.host), "freeing host memory");
    state.host = nullptr, state.host_bytes = 0;
    check(cudaMallocHost(reinterpret_cast<void**>(&state.host), needed), "pinning host memory");
    state.host_bytes = needed;
  }
  for_each_tensor(state.trace,
                  [&](const dropless_tensor& tensor, std::size_t place, std::size_t bytes) {
                    check(cudaMemcpyAsync(state.host + place, tensor.data, bytes,
                                          cudaMemcpyDeviceToHost, call.stream()),
                          "moving kept tensors to the host");
                  });
  state.is_on_host = true;
}

LayerTrace bring_back(Call& call, const LayerState& state) {
  LayerTrace trace = state.trace;
  for_each_tensor(trace, [&](dropless_tensor& tensor, std::size_t place, std::size_t bytes) {
    tensor.data = call.scratch<std::byte>(static_cast<Index>(bytes));
    check(cudaMemcpyAsync(tensor.data, state.host + place, bytes, cudaMemcpyHostToDevice,
                          call.stream()),
          "moving kept tensors back");
  });
  return trace;
}

KeptState take_state(const Call& call) {
  const std::pair<int, cudaStream_t> home{call.device().ordinal, call.stream()};
  KeptState state;
  {
    const std::lock_guard lock(pool().mutex);
    auto& idle = pool().idle;
    const auto found =
        std::find_if(idle.begin(), idle.end(), [&](const auto& one) { return one->home == home; });
    if (found != idle.end()) {
      state.reset(*found);
      idle.erase(found);
    }
  }
  if (!state) state.reset(new LayerState);
  state->home = home;
  state->has_trace = state->is_on_host = false;
  state->memory.release({});
  return state;
}

void GiveBack::operator()(LayerState* state) const noexcept {
  const std::lock_guard lock(pool().mutex);
  pool().idle.push_back(state);
}

dropless_tensor make(Call& call, Workspace& memory, dropless_dtype dtype,
                     std::initializer_list<Index> shape) {
  Index elements = 1;
  for (const Index extent : shape) elements *= extent;
  const auto bytes = static_cast<std::size_t>(elements * element_bytes(dtype));
  return describe(memory.take(bytes, call.stream()), dtype, shape);
}

Tensor view(const dropless_tensor& given) {
  return given.rank == 1 ? tensor(&given, "tensor", any_dtype, {any})
                         : tensor(&given, "tensor", any_dtype, {any, any});
}

}  // namespace dropless::cuda
