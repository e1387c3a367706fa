// SPDX-License-Identifier: Apache-2.0
// JUnit XML, for systems that read nothing else: one test suite per stage, one test case per case.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/report/failure_text.h"

namespace dropless::conformance {

// fail, flaky and mistrusted become <failure>, a case without a judgement <error>, and what was not
// judged for an acceptable reason <skipped>.
std::string junit_xml(const nlohmann::ordered_json& header, const std::vector<Outcome>& outcomes,
                      const Reproduction& how);

// Throws UsageError, so that a long run isn't made for nothing.
void check_writable(const std::string& path);
// Replaces the file as a whole. Throws UsageError.
void write_file(const std::string& path, const std::string& text);

}  // namespace dropless::conformance
