// SPDX-License-Identifier: Apache-2.0
// The caller's record of a call.
#include "optimized/cuda/call.h"

namespace dropless::cuda {
namespace {

void copy_text(const std::string& text, char* out, std::size_t bytes) {
  const std::size_t length = std::min(text.size(), bytes - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

}  // namespace

Call::Call(dropless_call* call) : call_(call) {
  if (call_ != nullptr && DROPLESS_HAS_FIELD(call_, dropless_call, stream)) {
    stream_ = static_cast<cudaStream_t>(call_->stream);
  }
  if (call_ != nullptr && DROPLESS_HAS_FIELD(call_, dropless_call, device)) {
    ordinal_ = call_->device;
  }
  set_message("");
  write_path("");
}

Call::~Call() {
  if (workspace_ != nullptr) workspace_->release(mark_);
}

void Call::enter() {
  device_ = &cuda::device(ordinal_);
  check(cudaSetDevice(ordinal_), "choosing the GPU");
  workspace_ = &workspace_of(ordinal_, stream_);
  mark_ = workspace_->mark();
}

void Call::set_message(const std::string& text) const {
  if (call_ == nullptr || !DROPLESS_HAS_FIELD(call_, dropless_call, message)) return;
  copy_text(text, call_->message, sizeof call_->message);
}

void Call::write_path(const std::string& text) const {
  if (call_ == nullptr || !DROPLESS_HAS_FIELD(call_, dropless_call, path)) return;
  copy_text(text, call_->path, sizeof call_->path);
}

}  // namespace dropless::cuda
