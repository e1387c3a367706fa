// SPDX-License-Identifier: Apache-2.0
// The line protocol with a peer, whatever it does.
#include "conformance/benchmarks/device/peer.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <exception>
#include <thread>
#include <utility>

#include "conformance/runner/child.h"

namespace dropless::conformance {
namespace {

constexpr std::size_t longest_quote = 200;
constexpr std::size_t most_kept = 1 << 14;  // of what it prints

std::string quoted(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  if (text.size() > longest_quote) text = text.substr(0, longest_quote) + "...";
  return "'" + text + "'";
}

// The last line with something on it: where Python says what was wrong.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  const std::size_t begin = text.find_last_of('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

// It has closed its output and is about to end; a kill would hide how.
int wait_for_end(Child& child) {
  for (int i = 0; i < 200; ++i) {
    if (const std::optional<int> status = child.ended()) return *status;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return child.finish();
}

PeerAnswer no_time(std::string why) {
  return {0, "", std::move(why)};
}

constexpr std::string_view ready = "ready ", none = "none: ";

}  // namespace

Peer::Peer(const std::string& command, const std::atomic<int>* interrupt,
           std::chrono::milliseconds patience)
    : interrupt_(interrupt), patience_(patience) {
  std::signal(SIGPIPE, SIG_IGN);  // it may die while it is spoken to
  const std::string script = fmt::format("exec 0<&{0} 1>&{1} {0}<&- {1}>&-; {2}",
                                         request_descriptor, reply_descriptor, command);
  try {
    child_ = std::make_unique<Child>("/bin/sh", std::vector<std::string>{"sh", "-c", script});
  } catch (const std::exception& error) {
    trouble_ = fmt::format("the peer could not be started ({})", error.what());
    return;
  }
  std::string line;
  if (!read_line(line)) return;
  if (line.starts_with(none)) {
    give_up("the peer says: " + line.substr(none.size()));
  } else if (line.starts_with(ready)) {
    name_ = line.substr(ready.size());
  } else {
    give_up(fmt::format("the peer began with {} instead of 'ready <name>' or 'none: <why>'",
                        quoted(line)));
  }
}

Peer::~Peer() = default;

PeerAnswer Peer::ask(const std::string& request) {
  if (!trouble_.empty()) return no_time(trouble_);
  std::string line;
  if (!child_->send(request)) {
    // It may have gone a moment ago: reading says how.
    if (read_line(line)) give_up("the peer does not read its input");
    return no_time(trouble_);
  }
  if (!read_line(line)) return no_time(trouble_);
  if (line.starts_with(none)) return no_time(line.substr(none.size()));
  double microseconds = 0;
  const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), microseconds);
  const bool ends = rest == line.data() + line.size() || *rest == ' ';
  if (error != std::errc{} || !ends || !std::isfinite(microseconds) || microseconds <= 0) {
    // The next line could belong to any question.
    give_up(
        fmt::format("the peer answered {} instead of microseconds or 'none: <why>'", quoted(line)));
    return no_time(trouble_);
  }
  const std::size_t how = static_cast<std::size_t>(rest - line.data()) + 1;
  return {microseconds * 1e-6, how < line.size() ? line.substr(how) : "", ""};
}

bool Peer::read_line(std::string& line) {
  const auto until = std::chrono::steady_clock::now() + patience_;
  for (;;) {
    const bool was_open = child_->replies() >= 0;
    const std::vector<std::string> lines = child_->take_replies();
    printed_ += child_->take_output();
    if (printed_.size() > most_kept) printed_.erase(0, printed_.size() - most_kept);
    if (lines.size() == 1) {
      line = lines[0];
      return true;
    }
    if (lines.size() > 1) {
      give_up(fmt::format("the peer wrote {} lines where one was due, beginning with {}",
                          lines.size(), quoted(lines[0])));
      return false;
    }
    if (!was_open || child_->replies() < 0) {
      const std::string ending = how_it_ended(wait_for_end(*child_));
      printed_ += child_->take_output();
      const std::string last = last_line(printed_);
      give_up(fmt::format("the peer ended ({}){}", ending,
                          last.empty() ? "" : ", its last words: " + quoted(last)));
      return false;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (interrupt_ != nullptr && *interrupt_ != 0) {
      give_up("the run was interrupted");
      return false;
    }
    if (left.count() <= 0) {
      give_up(fmt::format("the peer did not answer within {} s",
                          std::chrono::duration<double>(patience_).count()));
      return false;
    }
    pollfd waits[] = {{child_->replies(), POLLIN, 0}, {child_->output(), POLLIN, 0}};
    // A signal between the look at `interrupt` and this line must not cost all the patience.
    poll(waits, 2, static_cast<int>(std::min<std::int64_t>(left.count(), 1000)));
  }
}

void Peer::give_up(const std::string& why) {
  trouble_ = why;
  if (child_) child_->kill_group();
}

}  // namespace dropless::conformance
