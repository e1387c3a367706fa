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

}  // namespace

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
  state->has_trace = false;
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
