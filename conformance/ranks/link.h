// SPDX-License-Identifier: Apache-2.0
// A connection that carries lines in both directions and never blocks: pipes of a child, or TCP.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

using LinkClock = std::chrono::steady_clock;

class Link {
 public:
  // Owns both descriptors, which may be the same one.
  Link(int read_end, int write_end);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Queues a line (no newline in it) and writes what goes out at once.
  void send(std::string_view line);
  // Writes what is queued as far as it goes without waiting; false when the other side is gone.
  bool flush();
  // The same, waiting until everything is out or `deadline` has come.
  bool flush_until(LinkClock::time_point deadline);
  // Complete lines that are there, without waiting. After the last one open() is false if the other
  // side has closed, or sent a line that no honest peer would.
  std::vector<std::string> take_lines();
  // The next line, waiting for it; none at the end of the stream or at `deadline`.
  std::optional<std::string> next_line(LinkClock::time_point deadline);

  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] bool has_output() const { return !queued_.empty(); }
  [[nodiscard]] int read_end() const { return read_end_; }
  [[nodiscard]] int write_end() const { return write_end_; }

 private:
  int read_end_, write_end_;
  bool open_ = true;
  std::string queued_, partial_;
  std::vector<std::string> ready_;  // read ahead by next_line
};

// Waits until one of the links has something to read (or room for what is queued), at most for
// `milliseconds`. Null links are passed over; `others` are descriptors to be read.
void wait_for(const std::vector<Link*>& links, const std::vector<int>& others, int milliseconds);

// Bytes as hexadecimal digits and back; none when `text` is no such thing.
std::string hex_of(std::string_view bytes);
std::optional<std::string> bytes_of(std::string_view hex);

}  // namespace dropless::conformance
