// SPDX-License-Identifier: Apache-2.0
// A project that links the GPU implementation: a call without arguments is refused with a reason,
// on a machine with a GPU (the arguments) and on one without (the GPU).
#include <dropless/contract.h>
#include <optimized/cuda/implementation.h>

#include <cstdio>

int main() {
  const dropless_implementation& mine = dropless::cuda::implementation();
  dropless_call call{};
  call.struct_size = sizeof call;
  call.struct_version = DROPLESS_STRUCT_VERSION;
  const dropless_status status = mine.permute_plan(mine.context, &call, nullptr);
  std::printf("%s: status %d, %s\n", mine.name, status, call.message);
  const bool refused = status == DROPLESS_INVALID_ARGUMENT || status == DROPLESS_NOT_SUPPORTED;
  return mine.memory_space == DROPLESS_CUDA_DEVICE && refused && call.message[0] != 0 ? 0 : 1;
}
