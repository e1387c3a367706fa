// SPDX-License-Identifier: Apache-2.0
// The table of operations and the profile that it declares.
#include "optimized/cpu/implementation.h"

#include "optimized/cpu/exchange/implementation.h"
#include "optimized/cpu/operations.h"

namespace dropless::cpu {
namespace {

// Every choice of this implementation is the default one (zero): ties to the lowest index,
// descending scores, alignment 1, slot order, RCEIL with NaN kept in its element, untouched tail
// rows, fp32 accumulation for all operands, flat dispatch with ids in ascending order, an error on
// overflow, the same bits for any number of threads.
constexpr dropless_profile make_profile() {
  dropless_profile defaults = {};
  defaults.struct_size = sizeof defaults;
  defaults.struct_version = DROPLESS_STRUCT_VERSION;
  return defaults;
}
constexpr dropless_profile profile = make_profile();

// Operations that only read their arguments, and those that hand something back in them.
template <auto operation, class Args>
dropless_status read_only(void*, dropless_call* raw, Args* args) {
  Call call(raw);
  return guarded(call, [&] { operation(call, read_struct(args, "arguments")); });
}
template <auto operation, class Args>
dropless_status writes_back(void*, dropless_call* raw, Args* args) {
  Call call(raw);
  return guarded(call, [&] {
    Args copy = read_struct(args, "arguments");
    operation(call, copy);
    const std::uint32_t size = copy.struct_size;
    std::memcpy(static_cast<void*>(args), &copy, std::min<std::size_t>(size, sizeof copy));
  });
}

// The host has no deferred errors: everything is reported by the call itself.
dropless_status synchronize(void*, dropless_call* raw, dropless_synchronize_args*) {
  const Call call(raw);
  return DROPLESS_OK;
}

dropless_implementation make_table() {
  dropless_implementation table = {};
  table.struct_size = sizeof table;
  table.contract_version = DROPLESS_CONTRACT_VERSION;
  table.name = "dropless cpu";
  table.version = "0.1.0";
#if defined(__VERSION__)
  table.build = "C++20, " __VERSION__ ", instruction set chosen at run time";
#else
  table.build = "C++20";
#endif
  table.memory_space = DROPLESS_HOST;
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
  exchange::fill_entries(table);
  table.synchronize = synchronize;
  return table;
}

}  // namespace

const dropless_implementation& implementation() {
  static const dropless_implementation table = make_table();
  return table;
}

}  // namespace dropless::cpu
