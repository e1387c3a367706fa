// SPDX-License-Identifier: Apache-2.0
// Cases that an implementation can only pass by ending its process (EXCHANGE-10b).
#pragma once

#include <string_view>

namespace dropless::conformance {

// From here on the case expects that this process (of a collective case: of this rank) ends inside
// one of these operations, "exchange_plan exchange_dispatch": that is then its verdict, a pass.
// False, and nothing is announced, where nobody is left to give it.
[[nodiscard]] bool announce_end(std::string_view operations);

}  // namespace dropless::conformance
