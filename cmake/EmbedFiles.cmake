# SPDX-License-Identifier: Apache-2.0
# Writes a C++ source that holds files as byte arrays. Run as a build step:
#   cmake -DOUTPUT=out.cpp -DFUNCTION=embedded_models "-DFILES=a.json;b.json" -P EmbedFiles.cmake
# Arrays, not string literals: compilers need not take literals beyond 64 KiB.
set(arrays "")
set(table "")
set(index 0)
foreach(path IN LISTS FILES)
  get_filename_component(name ${path} NAME)
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND arrays "constexpr char file_${index}[] = {${bytes}'\\0'};\n")
  string(APPEND table "      {\"${name}\", {file_${index}, sizeof file_${index} - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT}
"#include \"conformance/cases/embedded.h\"
namespace dropless::conformance {
namespace {
${arrays}}  // namespace
const std::vector<EmbeddedFile>& ${FUNCTION}() {
  static const std::vector<EmbeddedFile> files = {
${table}  };
  return files;
}
}  // namespace dropless::conformance
")
