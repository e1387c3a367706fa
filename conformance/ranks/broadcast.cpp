// SPDX-License-Identifier: Apache-2.0
// Calling the program that knows MPI.
#include "conformance/ranks/broadcast.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "conformance/cases/case_id.h"
#include "conformance/ranks/local_rank.h"

namespace dropless::conformance {
namespace {

constexpr auto patience = std::chrono::seconds(60);

}  // namespace

std::string mpi_program() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const std::filesystem::path program = self.parent_path() / "dropless_mpi_rank";
  return access(program.c_str(), X_OK) == 0 ? program.string() : "";
}

std::string broadcast(const std::string& text) {
  const std::string program = mpi_program();
  if (program.empty()) {
    throw UsageError(
        "the ranks of this job are on several machines and this build has no MPI; set MASTER_ADDR "
        "and MASTER_PORT, or DROPLESS_RENDEZVOUS to a file that all ranks can read");
  }
  std::vector<std::string> arguments{"dropless_mpi_rank", "--broadcast", text};
  Child child(program, arguments);
  const auto deadline = LinkClock::now() + patience;
  while (LinkClock::now() < deadline) {
    const bool over = child.ended().has_value();
    const std::vector<std::string> lines = child.take_replies();
    if (!lines.empty()) return lines.front();
    if (over) break;
    usleep(20000);
  }
  throw UsageError(
      fmt::format("rank 0 could not be asked over MPI ({}); set MASTER_ADDR and MASTER_PORT, or "
                  "DROPLESS_RENDEZVOUS to a file that all ranks can read",
                  how_it_ended(child.finish())));
}

}  // namespace dropless::conformance
