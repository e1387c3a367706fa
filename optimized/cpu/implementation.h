// SPDX-License-Identifier: Apache-2.0
// The fast implementation for the host: every operation of one rank, and the exchange between ranks
// that are threads or processes; the same bits for any number of threads.
//
//     const dropless_implementation& mine = dropless::cpu::implementation();
//     dropless_call call = {sizeof call, DROPLESS_STRUCT_VERSION};
//     call.threads = 2;                                   // 0: one per processor
//     dropless_gemm_fprop_args args = {sizeof args, DROPLESS_STRUCT_VERSION, 1.0, &x, &w, nullptr,
//                                      &offsets, nullptr, &y};
//     if (mine.gemm_fprop(mine.context, &call, &args) != DROPLESS_OK) puts(call.message);
//     puts(call.path);                                    // "cpu/avx512"
#pragma once

#include <dropless/contract.h>

namespace dropless::cpu {

// The table; it lives as long as the process. Operations return INVALID_ARGUMENT with a message and
// outputs untouched (GENERAL-3), OUT_OF_MEMORY, or OK. They allocate their own scratch memory and
// never look at call->workspace.
const dropless_implementation& implementation();

}  // namespace dropless::cpu
