// SPDX-License-Identifier: Apache-2.0
// The table of operations and the profile that it declares.
#include "optimized/cuda/implementation.h"

#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

// The default choices (zero), but for the accumulator: products of bf16 and of upcast MXFP8 go
// through tensor cores, which align to 25 fraction bits and truncate (GROUPED_GEMM-6).
constexpr dropless_profile make_profile() {
  dropless_profile choices = {};
  choices.struct_size = sizeof choices;
  choices.struct_version = DROPLESS_STRUCT_VERSION;
  choices.accumulator_bf16 = DROPLESS_ACCUMULATOR_TENSOR_CORE_25;
  choices.accumulator_mxfp8 = DROPLESS_ACCUMULATOR_TENSOR_CORE_25;
  return choices;
}
constexpr dropless_profile profile = make_profile();

// Operations that only read their arguments, and those that hand something back in them.
template <auto operation, class Args>
[[maybe_unused]] dropless_status read_only(void*, dropless_call* raw, Args* args) {
  Call call(raw);
  return guarded(call, [&] { operation(call, read_struct(args, "arguments")); });
}
template <auto operation, class Args>
[[maybe_unused]] dropless_status writes_back(void*, dropless_call* raw, Args* args) {
  Call call(raw);
  return guarded(call, [&] {
    Args known = read_struct(args, "arguments");
    const std::size_t declared = known.struct_size;
    operation(call, known);
    std::memcpy(static_cast<void*>(args), &known, std::min(declared, sizeof known));
  });
}

// Waits for the stream; what the device refused meanwhile is reported once.
dropless_status synchronize(void*, dropless_call* raw, dropless_synchronize_args*) {
  Call call(raw);
  return guarded(call, [&] {
    int reason = 0;
    int* word = call.refusal_word();
    check(cudaMemcpyAsync(&reason, word, sizeof reason, cudaMemcpyDeviceToHost, call.stream()),
          "reading deferred refusals");
    check(cudaStreamSynchronize(call.stream()), "waiting for the stream");
    if (reason == 0) return;
    check(cudaMemsetAsync(word, 0, sizeof *word, call.stream()), "clearing the refusal word");
    refuse(text_of(static_cast<DeviceReason>(reason)));
  });
}

// One line for every operation that exists; the others stay null and are reported NOT_SUPPORTED.
dropless_implementation make_table() {
  dropless_implementation table = {};
  table.struct_size = sizeof table;
  table.contract_version = DROPLESS_CONTRACT_VERSION;
  table.name = "dropless cuda";
  table.version = "0.1.0";
  table.build = "C++20, CUDA " DROPLESS_CUDA_VERSION ", machine code for sm_" DROPLESS_CUDA_CODE;
  table.memory_space = DROPLESS_CUDA_DEVICE;
  table.profile = &profile;
  table.synchronize = synchronize;
  return table;
}

}  // namespace

const dropless_implementation& implementation() {
  static const dropless_implementation table = make_table();
  return table;
}

}  // namespace dropless::cuda
