// SPDX-License-Identifier: Apache-2.0
// A call that must be refused with a message that names the culprit (GENERAL-3).
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "reference/value.h"

namespace dropless::reference::testing {

template <typename Call>
void expect_refused(const Call& call, const std::string& culprit) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << culprit;
  } catch (const Refused& refused) {
    EXPECT_NE(std::string(refused.what()).find(culprit), std::string::npos)
        << "message '" << refused.what() << "' does not name '" << culprit << "'";
  }
}

}  // namespace dropless::reference::testing
