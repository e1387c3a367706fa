// SPDX-License-Identifier: Apache-2.0
// Why an operation did not run, and how errors of the CUDA runtime become that.
//
//     check(cudaMemsetAsync(...), "zeroing the counts");
//     kernel<<<grid, block, 0, call.stream()>>>(...);
//     check_launch("permute_rows");
#pragma once

#include <cuda_runtime_api.h>
#include <dropless/contract.h>

#include <string>
#include <utility>

namespace dropless::cuda {

// Becomes the status and the message of the call.
struct Refusal {
  dropless_status status;
  std::string message;
};

[[noreturn]] inline void refuse(std::string message) {
  throw Refusal{DROPLESS_INVALID_ARGUMENT, std::move(message)};
}
inline void refuse_if(bool wrong, const char* message) {
  if (wrong) refuse(message);
}
[[noreturn]] inline void not_supported(std::string message) {
  throw Refusal{DROPLESS_NOT_SUPPORTED, std::move(message)};
}

// Memory that ran out leaves the device usable; everything else that a call may answer is either a
// mistake of this library or a device that is lost for this process ("sticky" errors).
inline dropless_status status_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return DROPLESS_OK;
    case cudaErrorMemoryAllocation:
      return DROPLESS_OUT_OF_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDevice:
      return DROPLESS_NOT_SUPPORTED;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
      return DROPLESS_INTERNAL_ERROR;
    default:
      return DROPLESS_DEVICE_ERROR;
  }
}

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not be found by the next call
  throw Refusal{status_of(error), std::string(what) + ": " + cudaGetErrorName(error) + ", " +
                                      cudaGetErrorString(error)};
}

// Right after a launch.
inline void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

// For what must not happen while a graph is made of the stream.
inline void refuse_while_captured(cudaStream_t stream, const char* what) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is captured");
  if (capture == cudaStreamCaptureStatusNone) return;
  throw Refusal{DROPLESS_INTERNAL_ERROR,
                std::string(what) +
                    ", which a captured stream does not allow; make the same call once before the "
                    "capture"};
}

}  // namespace dropless::cuda
