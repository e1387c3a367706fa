// SPDX-License-Identifier: Apache-2.0
// Statuses, messages and paths of calls through the contract.
#include "reference/contract/call.h"

#include <new>

namespace dropless::reference::contract {
namespace {

void write_text(char* to, std::size_t room, const char* text) {
  const std::size_t length = std::min(std::strlen(text), room - 1);
  std::memcpy(to, text, length);
  to[length] = '\0';
}

void report(dropless_call* call, const char* message) {
  if (DROPLESS_HAS_FIELD(call, dropless_call, message)) {
    write_text(call->message, sizeof call->message, message);
  }
  if (DROPLESS_HAS_FIELD(call, dropless_call, path)) {
    write_text(call->path, sizeof call->path, "reference");
  }
}

}  // namespace

bool is_usable(const dropless_call* call) noexcept {
  return call != nullptr && DROPLESS_HAS_FIELD(call, dropless_call, struct_version);
}

void report_success(dropless_call* call) noexcept {
  report(call, "");
}

dropless_status status_of_exception(dropless_call* call) noexcept {
  try {
    throw;
  } catch (const Refused& refused) {
    report(call, refused.what());
    return DROPLESS_INVALID_ARGUMENT;
  } catch (const NotSupported& not_supported) {
    report(call, not_supported.what());
    return DROPLESS_NOT_SUPPORTED;
  } catch (const StatusError& error) {
    report(call, error.what());
    return error.status;
  } catch (const std::bad_alloc&) {
    report(call, "out of memory");
    return DROPLESS_OUT_OF_MEMORY;
  } catch (const std::length_error&) {
    report(call, "out of memory: a size beyond what a vector can hold");
    return DROPLESS_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    report(call, error.what());
    return DROPLESS_INTERNAL_ERROR;
  } catch (...) {
    report(call, "unknown error");
    return DROPLESS_INTERNAL_ERROR;
  }
}

}  // namespace dropless::reference::contract
