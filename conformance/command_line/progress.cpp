// SPDX-License-Identifier: Apache-2.0
// The progress line.
#include "conformance/command_line/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ostream>

namespace dropless::conformance {
namespace {

constexpr auto pause = std::chrono::milliseconds(100);

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(std::ostream& err, bool shown, std::size_t cases, std::size_t done_before)
    : err_(err), shown_(shown), cases_(cases), done_(done_before) {}

Progress::~Progress() {
  if (shown_) err_ << "\r\033[K" << std::flush;
}

void Progress::note(const Outcome& outcome) {
  ++done_;
  bad_ += acceptable(outcome.verdict.status) ? 0 : 1;
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now < next_) return;
  next_ = now + pause;
  std::string line = fmt::format("{}/{}", done_, cases_);
  if (bad_ > 0) line += fmt::format("  {} not right", bad_);
  line += "  " + outcome.id.text();
  err_ << "\r\033[K" << line.substr(0, terminal_width() - 1) << std::flush;
}

}  // namespace dropless::conformance
