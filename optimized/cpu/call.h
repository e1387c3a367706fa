// SPDX-License-Identifier: Apache-2.0
// The caller's dropless_call, and the guard around every operation: no exception leaves it.
#pragma once

#include <dropless/contract.h>

#include <new>
#include <string>

#include "optimized/cpu/arguments.h"
#include "optimized/cpu/simd.h"

namespace dropless::cpu {

class Call {
 public:
  explicit Call(dropless_call* call) : call_(call) {
    if (call_ != nullptr && DROPLESS_HAS_FIELD(call_, dropless_call, threads)) {
      threads_ = call_->threads;
    }
    set_message("");
    write_path("");
  }
  explicit Call(int threads) : threads_(threads) {}

  [[nodiscard]] int threads() const { return threads_; }
  // The path of an operation whose speed depends on the instruction set: "cpu/avx512".
  void ran_simd() const { write_path("cpu/" + std::string(isa_name())); }
  void ran(const std::string& path) const { write_path(path); }
  void set_message(const std::string& text) const {
    if (call_ == nullptr || !DROPLESS_HAS_FIELD(call_, dropless_call, message)) return;
    copy_text(text, call_->message, sizeof call_->message);
  }

 private:
  void write_path(const std::string& text) const {
    if (call_ == nullptr || !DROPLESS_HAS_FIELD(call_, dropless_call, path)) return;
    copy_text(text, call_->path, sizeof call_->path);
  }
  static void copy_text(const std::string& text, char* out, std::size_t bytes) {
    const std::size_t length = std::min(text.size(), bytes - 1);
    std::memcpy(out, text.data(), length);
    out[length] = '\0';
  }

  dropless_call* call_ = nullptr;
  int threads_ = 0;
};

// Runs body() and turns what it throws into a status and a message.
template <class Body>
dropless_status guarded(const Call& call, const Body& body) {
  try {
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

}  // namespace dropless::cpu
