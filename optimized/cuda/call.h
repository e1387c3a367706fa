// SPDX-License-Identifier: Apache-2.0
// One call: its stream, its device, its scratch memory, and the guard that lets no exception out.
//
//     void permute_plan(Call& call, const dropless_permute_plan_args& args) {
//       const Tensor ids = tensor(args.ids, "ids", integers, {any, any});    // throws Refusal
//       auto* counts = call.scratch<int>(experts * blocks);
//       count_kernel<<<blocks, 256, 0, call.stream()>>>(ids, counts, call.refusal_word());
//       check_launch("count_kernel");
//       call.ran("permute");                                                 //
//       "cuda/sm90a/permute"
//     }
#pragma once

#include <cuda_runtime_api.h>
#include <dropless/contract.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "optimized/cuda/arguments.h"
#include "optimized/cuda/device.h"
#include "optimized/cuda/status.h"
#include "optimized/cuda/workspace.h"

namespace dropless::cuda {

class Call {
 public:
  // Touches no device yet.
  explicit Call(dropless_call* call);
  // Takes back the scratch memory of this call.
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Makes the caller's device the current one of this thread. Throws Refusal when it cannot be
  // used.
  void enter();

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] const Device& device() const { return *device_; }

  // `count` elements in device memory until the call ends; contents undefined.
  template <class T>
  [[nodiscard]] T* scratch(Index count) {
    return static_cast<T*>(
        workspace_->take(static_cast<std::size_t>(std::max<Index>(count, 1)) * sizeof(T), stream_));
  }
  [[nodiscard]] Workspace& workspace() { return *workspace_; }
  // Where checks on the device leave their reason (device_refusal.h).
  [[nodiscard]] int* refusal_word() { return workspace_->refusal_word(stream_); }

  // An operation made of others vouches for the values that it hands on: their checks are left out.
  [[nodiscard]] bool trusted() const { return trusted_; }
  void set_trusted(bool trusted) { trusted_ = trusted; }

  // The path taken: "cuda/<whose machine code>/<what>".
  void ran(const std::string& what) const { write_path("cuda/" + device_->code + "/" + what); }
  void set_message(const std::string& text) const;

 private:
  void write_path(const std::string& text) const;

  dropless_call* call_;
  cudaStream_t stream_ = nullptr;
  int ordinal_ = 0;
  const Device* device_ = nullptr;
  Workspace* workspace_ = nullptr;
  Workspace::Mark mark_;
  bool trusted_ = false;
};

// Scratch memory that is handed out again when the scope ends, before the call does.
class ScratchScope {
 public:
  explicit ScratchScope(Call& call) : workspace_(call.workspace()), mark_(workspace_.mark()) {}
  ~ScratchScope() { workspace_.release(mark_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  Workspace& workspace_;
  Workspace::Mark mark_;
};

// Runs body() and turns what it throws into a status and a message.
template <class Body>
dropless_status guarded(Call& call, const Body& body) {
  try {
    call.enter();
    body();
    return DROPLESS_OK;
  } catch (const Refusal& refusal) {
    call.set_message(refusal.message);
    return refusal.status;
  } catch (const std::bad_alloc&) {
    call.set_message("out of host memory");
    return DROPLESS_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    call.set_message(error.what());
    return DROPLESS_INTERNAL_ERROR;
  } catch (...) {
    call.set_message("unknown exception");
    return DROPLESS_INTERNAL_ERROR;
  }
}

}  // namespace dropless::cuda
