// SPDX-License-Identifier: Apache-2.0
// A project that uses dropless as a dependency: it runs the expert-bias update of the reference, of
// the CPU implementation and of a plug-in given by its path, and compares the bits.
#include <dlfcn.h>
#include <dropless/contract.h>
#include <dropless/formats.h>
#include <optimized/cpu/implementation.h>
#include <reference/implementation.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace {

using Bias = std::array<float, 4>;

dropless_tensor tensor(void* data, dropless_dtype dtype) {
  dropless_tensor t{};
  t.struct_size = sizeof t;
  t.struct_version = DROPLESS_STRUCT_VERSION;
  t.data = data;
  t.dtype = dtype;
  return t;
}

bool update(const dropless_implementation& implementation, Bias& bias) {
  std::array<std::int64_t, 8> loads = {5, 0, 3, 2, 1, 0, 3, 2};  // [2,4]; the mean expert has 4
  dropless_tensor counts = tensor(loads.data(), DROPLESS_I64);
  counts.rank = 2;
  counts.shape[0] = 2, counts.shape[1] = 4;
  counts.strides[0] = 4, counts.strides[1] = 1;
  dropless_tensor expert_bias = tensor(bias.data(), DROPLESS_FP32);
  expert_bias.rank = 1;
  expert_bias.shape[0] = 4, expert_bias.strides[0] = 1;

  dropless_call call{};
  call.struct_size = sizeof call;
  call.struct_version = DROPLESS_STRUCT_VERSION;
  dropless_bias_update_args args{};
  args.struct_size = sizeof args;
  args.struct_version = DROPLESS_STRUCT_VERSION;
  args.rate = 0.001;
  args.counts = &counts;
  args.expert_bias = &expert_bias;
  const dropless_status status = implementation.bias_update(implementation.context, &call, &args);
  std::printf("%-20s status %d, path %s: %.9g %.9g %.9g %.9g\n", implementation.name, status,
              call.path, bias[0], bias[1], bias[2], bias[3]);
  return status == DROPLESS_OK;
}

const dropless_implementation* load(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* symbol = library != nullptr ? dlsym(library, DROPLESS_ENTRY_SYMBOL) : nullptr;
  if (symbol == nullptr) {
    std::printf("%s\n", dlerror());
    return nullptr;
  }
  return reinterpret_cast<dropless_get_implementation_fn>(symbol)(DROPLESS_CONTRACT_VERSION);
}

}  // namespace

int main(int argc, char** argv) {
  static_assert(dropless::E4m3::from_float(1e9f).to_float() == 448.0f);
  const dropless_implementation* plugin = argc == 2 ? load(argv[1]) : nullptr;
  if (plugin == nullptr) return 1;
  const Bias start = {0.5f, -0.25f, 0.0f, 1e-3f};
  Bias reference = start;
  Bias cpu = start;
  Bias stranger = start;
  if (!update(dropless::reference::implementation(), reference)) return 1;
  if (!update(dropless::cpu::implementation(), cpu)) return 1;
  if (!update(*plugin, stranger)) return 1;
  const bool moved = reference[0] < start[0] && reference[1] > start[1] && reference[3] == start[3];
  const bool same = std::memcmp(&reference, &cpu, sizeof cpu) == 0 &&
                    std::memcmp(&reference, &stranger, sizeof stranger) == 0;
  std::puts(moved && same ? "the same bits three times" : "DIFFERENT");
  return moved && same ? 0 : 1;
}
