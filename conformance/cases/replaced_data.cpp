// SPDX-License-Identifier: Apache-2.0
// The replacement in force, by thread.
#include "conformance/cases/replaced_data.h"

#include <utility>

namespace dropless::conformance {
namespace {

thread_local const Replacement* in_force = nullptr;

}  // namespace

ReplacedData::ReplacedData(Replacement replacement)
    : replacement_(std::move(replacement)), before_(in_force) {
  in_force = &replacement_;
}

ReplacedData::~ReplacedData() {
  in_force = before_;
}

const Replacement* ReplacedData::of_thread() {
  return in_force;
}

}  // namespace dropless::conformance
