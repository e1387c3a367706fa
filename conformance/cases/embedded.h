// SPDX-License-Identifier: Apache-2.0
// Data files that are part of the library: the normative text and the published models. The
// definitions are generated at build time (cmake/EmbedFiles.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace dropless::conformance {

struct EmbeddedFile {
  std::string_view name;  // file name without its folder
  std::string_view text;
};

const std::vector<EmbeddedFile>& embedded_clauses();  // clauses/*.md, by name
const std::vector<EmbeddedFile>& embedded_models();   // models/models.json alone

}  // namespace dropless::conformance
