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
  table.route_forward = read_only<route_forward>;
  table.route_backward = read_only<route_backward>;
  table.balance_loss_forward = read_only<balance_loss_forward>;
  table.balance_loss_backward = read_only<balance_loss_backward>;
  table.z_loss_forward = read_only<z_loss_forward>;
  table.z_loss_backward = read_only<z_loss_backward>;
  table.bias_update = read_only<bias_update>;
  table.permute_plan = read_only<permute_plan>;
  table.permute_forward = read_only<permute_forward>;
  table.permute_backward = read_only<permute_backward>;
  table.unpermute_forward = read_only<unpermute_forward>;
  table.unpermute_backward = read_only<unpermute_backward>;
  table.quantize = read_only<quantize>;
  table.dequantize = read_only<dequantize>;
  table.gemm_fprop = read_only<gemm_fprop>;
  table.gemm_dgrad = read_only<gemm_dgrad>;
  table.gemm_wgrad = read_only<gemm_wgrad>;
  table.activation_forward = read_only<activation_forward>;
  table.activation_backward = read_only<activation_backward>;
  table.cross_entropy_forward = read_only<cross_entropy_forward>;
  table.cross_entropy_backward = read_only<cross_entropy_backward>;
  table.adamw = read_only<adamw>;
  table.layer_forward = writes_back<layer_forward>;
  table.layer_backward = read_only<layer_backward>;
  table.layer_release = writes_back<layer_release>;
  table.synchronize = synchronize;
  return table;
}

}  // namespace

const dropless_implementation& implementation() {
  static const dropless_implementation table = make_table();
  return table;
}

}  // namespace dropless::cuda
