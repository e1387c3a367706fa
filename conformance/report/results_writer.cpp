// SPDX-License-Identifier: Apache-2.0
// Writing results: append-only, one write per record.
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "conformance/adapters/fingerprint.h"
#include "conformance/report/machine.h"
#include "conformance/report/results.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr int schema = 1;

[[noreturn]] void cannot_write(const std::string& path, int error) {
  throw UsageError(
      fmt::format("results file {} cannot be written ({}); name another with --results "
                  "or leave it out with --no-results",
                  path, std::strerror(error)));
}

void lock(const std::string& path, int descriptor) {
  // File systems without locks (ENOLCK, ENOTSUP) leave it to the user.
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(descriptor);
  throw UsageError(
      fmt::format("results file {} is being written by another run; wait for its end", path));
}

}  // namespace

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

Json header_of(const RunIdentity& identity) {
  std::string all;
  for (const std::string& id : identity.case_ids) all.append(id).push_back('\n');
  return {{"record", "header"},
          {"schema", schema},
          {"started", utc_now()},
          {"suite", identity.suite},
          {"machine", describe_machine()},
          {"implementation", identity.implementation},
          {"selection", identity.selection},
          {"settings", identity.settings},
          {"seed", "part of every case id"},
          {"cases", identity.case_ids.size()},
          {"case_list", hexadecimal(fingerprint_of(all))}};
}

ResultsWriter::ResultsWriter(std::string path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

ResultsWriter::ResultsWriter(ResultsWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

ResultsWriter::~ResultsWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

ResultsWriter ResultsWriter::create(const std::string& path, const Json& header) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) cannot_write(path, error.value());
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0 && errno == EEXIST) {
    throw UsageError(fmt::format(
        "results file {} exists already; continue it with --resume or name another", path));
  }
  if (descriptor < 0) cannot_write(path, errno);
  lock(path, descriptor);
  ResultsWriter writer(path, descriptor);
  writer.append(header);
  return writer;
}

ResultsWriter ResultsWriter::reopen(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) {
    throw UsageError(fmt::format("results file {} does not exist; give the one to continue", path));
  }
  if (descriptor < 0) cannot_write(path, errno);
  lock(path, descriptor);
  return {path, descriptor};
}

void ResultsWriter::go_on_after(const Results& results) {
  if (ftruncate(descriptor_, static_cast<off_t>(results.sound_bytes)) != 0) {
    cannot_write(path_, errno);
  }
  append({{"record", "resumed"}, {"at", utc_now()}, {"machine", describe_machine()}});
}

void ResultsWriter::append(const Json& record) {
  const std::string line = one_line(record) + "\n";
  for (std::size_t written = 0; written < line.size();) {
    const ssize_t count = write(descriptor_, line.data() + written, line.size() - written);
    if (count > 0) {
      written += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      throw UsageError(fmt::format(
          "results file {} cannot take more ({}); free space and continue it with --resume", path_,
          std::strerror(errno)));
    }
  }
}

void ResultsWriter::finish(const Json& footer) {
  append(footer);
  fsync(descriptor_);
}

}  // namespace dropless::conformance
