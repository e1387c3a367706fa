// SPDX-License-Identifier: Apache-2.0
// Payloads that say where they come from: every 16-byte unit of a row holds the source rank, the
// token, the call and the unit; scale bytes and weights name the same.
#pragma once

#include "conformance/cases/exchange/handle.h"

namespace dropless::conformance {

struct PayloadForm {
  dropless_dtype dtype = DROPLESS_BF16;
  Index hidden = 32;      // elements of a row
  Index scale_bytes = 0;  // of a row
  bool weights = true;    // weights travel
  bool any_bits = false;  // weights are any bit patterns, NaN and -0 included

  [[nodiscard]] Index row_bytes() const { return hidden * static_cast<Index>(dtype_bytes(dtype)); }
};

// What all ranks send in one call.
struct Payload {
  PayloadForm form;
  Index call = 0;
  std::vector<Sent> sent;  // [R]
};

// Shared by the ranks; `call` numbers the dispatches of a case, over all handles.
const Payload& tagged_payload(const World& world, const Routing& routing, const PayloadForm& form,
                              Index call);

// EXCHANGE-1a to 3f: everything a dispatch delivered, by the reference and, where a row has
// room for a tag, by what the rows themselves say.
void judge_dispatch(World& world, const Routing& routing, const Payload& payload,
                    const DispatchBuffers& got, const Order& order);

}  // namespace dropless::conformance
