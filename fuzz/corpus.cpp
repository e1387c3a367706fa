// SPDX-License-Identifier: Apache-2.0
// Appending cases to a batch file.
#include "fuzz/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "conformance/cases/case_id.h"

namespace dropless::fuzz {
namespace {

// One line of printable text, whatever an implementation put into its message.
std::string comment(const std::string& text) {
  std::string line = "# ";
  for (const char c : text.substr(0, 400)) line += c >= ' ' && c <= '~' ? c : ' ';
  return line;
}

std::string why(const conformance::Outcome& outcome) {
  const auto& verdict = outcome.verdict;
  if (verdict.failures.empty()) {
    return fmt::format("{}: {}", conformance::name(verdict.status), verdict.reason);
  }
  const conformance::Failure& first = verdict.failures.front();
  return fmt::format("{} {}: {} {}: expected {}, got {}", conformance::name(verdict.status),
                     first.clause, first.what, first.element, first.expected, first.got);
}

}  // namespace

Corpus::Corpus(std::string folder, const std::string& name)
    : folder_(std::move(folder)),
      path_((std::filesystem::path(folder_) / (name + ".txt")).string()) {}

void Corpus::save(const conformance::Outcome& outcome, const std::string& note) {
  std::error_code ignored;  // opening the file says it better
  std::filesystem::create_directories(folder_, ignored);
  const std::string text = comment(note + "; " + why(outcome)) + "\n" + outcome.id.text() + "\n";
  const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  bool written = file >= 0;
  for (std::size_t done = 0; written && done < text.size();) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    written = count >= 0 || errno == EINTR;
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  written = written && fsync(file) == 0;
  const int error = errno;
  if (file >= 0) close(file);
  if (!written) {
    throw conformance::UsageError(fmt::format(
        "{} cannot be written ({}); give another --out folder", path_, std::strerror(error)));
  }
}

}  // namespace dropless::fuzz
