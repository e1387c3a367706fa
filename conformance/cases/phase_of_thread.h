// SPDX-License-Identifier: Apache-2.0
// The operation that the calling thread has announced and not left, for a rank that throws out of
// it.
#pragma once

#include <string>

namespace dropless::conformance {

// Empty outside of operations.
const std::string& operation_of_thread();

}  // namespace dropless::conformance
