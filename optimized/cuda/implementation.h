// SPDX-License-Identifier: Apache-2.0
// The implementation for one NVIDIA GPU, compute capability 8.0 or later. Every operation enqueues
// its work on call->stream and returns; group sizes never leave the device.
//
//     const dropless_implementation& mine = dropless::cuda::implementation();
//     dropless_call call = {sizeof call, DROPLESS_STRUCT_VERSION};
//     call.stream = stream;                               // a cudaStream_t, null: the default one
//     mine.permute_plan(mine.context, &call, &args);      // tensors in device memory
//     puts(call.path);                                    // "cuda/sm90a/permute"
//     mine.synchronize(mine.context, &call, &waiting);    // waits, reports deferred refusals
#pragma once

#include <dropless/contract.h>

namespace dropless::cuda {

// The table; it lives as long as the process. Operations return INVALID_ARGUMENT with a message for
// shapes and settings, NOT_SUPPORTED where no usable GPU is, OUT_OF_MEMORY, DEVICE_ERROR once the
// device is lost for this process, or OK. Wrong values in device memory are reported by
// synchronize, and work behind them on the same stream is left out until then (GENERAL-3).
const dropless_implementation& implementation();

}  // namespace dropless::cuda
