// SPDX-License-Identifier: Apache-2.0
// A child process, mostly in its own process group: requests go in by one pipe, replies come back
// by another, and what it prints is caught by a third. It dies with its parent, whatever happens.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

inline constexpr int request_descriptor = 3;  // in the child: read end
inline constexpr int reply_descriptor = 4;    // in the child: write end

// Whose group the child belongs to. In its parent's it ends when that group is killed.
enum class ProcessGroup { own, of_parent };

class Child {
 public:
  // Runs `program` with `arguments` (argv[0] included). Throws std::system_error.
  Child(const std::string& program, const std::vector<std::string>& arguments,
        ProcessGroup group = ProcessGroup::own);
  ~Child();  // kills the whole group, if it is its own, and waits
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int replies() const { return replies_; }  // for poll; -1 once at its end
  [[nodiscard]] int output() const { return output_; }

  [[nodiscard]] int requests() const { return requests_; }

  // False when the child no longer reads.
  [[nodiscard]] bool send(std::string_view line);
  // Reads what is there without waiting. Complete reply lines, without their newline.
  std::vector<std::string> take_replies();
  // What was printed since the last call.
  std::string take_output();

  // Wait status when the child has ended, without waiting for it.
  std::optional<int> ended();
  void kill_group();
  // No more requests will come: a child that understands this ends by itself.
  void close_requests();
  // Kills, waits, returns the wait status.
  int finish();

 private:
  ProcessGroup group_;
  pid_t pid_ = -1;
  int requests_ = -1, replies_ = -1, output_ = -1;
  std::string partial_;  // a reply line that is not complete yet
  std::optional<int> status_;
};

// "SIGSEGV", "exit(3)": how a process ended.
std::string how_it_ended(int wait_status);
// Resident bytes of a process and its descendants, 0 when they are gone.
std::int64_t resident_bytes(pid_t pid);

}  // namespace dropless::conformance
