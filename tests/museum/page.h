// SPDX-License-Identifier: Apache-2.0
// The museum as a page of Markdown.
#pragma once

#include <string>
#include <vector>

#include "conformance/adapters/sources.h"
#include "tests/museum/exhibit.h"

namespace dropless::museum {

// One exhibit for each of the faults, in their order.
std::string page(const std::vector<conformance::FaultEntry>& faults,
                 const std::vector<Exhibit>& exhibits);

}  // namespace dropless::museum
