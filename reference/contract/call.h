// SPDX-License-Identifier: Apache-2.0
// The way from a C call to a C++ function and back: argument structs of any declared length,
// statuses instead of exceptions, message and path.
#pragma once

#include <dropless/contract.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "reference/value.h"

namespace dropless::reference::contract {

// A legal request that the reference does not offer behind the contract.
struct NotSupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Any other status than OK, with its message.
struct StatusError : std::runtime_error {
  StatusError(dropless_status which, const std::string& message)
      : std::runtime_error(message), status(which) {}
  dropless_status status;
};

// A copy as long as the declared struct is ours: fields beyond the declared size are zero (contract
// rule: a missing trailing field means zero). Throws Refused for null and for a struct that does
// not reach `required` bytes, by default its size and version.
template <typename Struct>
Struct completed(const Struct* declared, const char* name,
                 std::size_t required = 2 * sizeof(std::uint32_t)) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (declared == nullptr) throw Refused(std::string(name) + " is null");
  if (declared->struct_size < required) {
    throw Refused(std::string(name) + ".struct_size = " + std::to_string(declared->struct_size) +
                  " is below the " + std::to_string(required) + " bytes that are needed");
  }
  Struct copy{};
  std::memcpy(&copy, declared, std::min<std::size_t>(declared->struct_size, sizeof copy));
  copy.struct_size = sizeof copy;
  return copy;
}

// Status of the exception in flight, with its message written into the call. To be called from
// inside a catch block.
dropless_status status_of_exception(dropless_call* call) noexcept;
// Empty message and the path of the reference, as far as the call has room for them.
void report_success(dropless_call* call) noexcept;
bool is_usable(const dropless_call* call) noexcept;

// The table entry of an operation that throws: `context` is its profile.
template <typename Arguments, void (*operation)(const dropless_profile&, Arguments*)>
dropless_status entry(void* context, dropless_call* call, Arguments* arguments) noexcept {
  if (!is_usable(call)) return DROPLESS_INVALID_ARGUMENT;
  try {
    if (context == nullptr) throw Refused("context is null");
    operation(*static_cast<const dropless_profile*>(context), arguments);
    report_success(call);
    return DROPLESS_OK;
  } catch (...) {
    return status_of_exception(call);
  }
}

}  // namespace dropless::reference::contract
