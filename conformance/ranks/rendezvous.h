// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job find each other: rank 0 listens, everybody else connects, within a time.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "conformance/ranks/launch.h"
#include "conformance/ranks/tcp.h"

namespace dropless::conformance {

// Rank 0 at the meeting point. A file that it wrote goes away with it.
class Host {
 public:
  // Throws UsageError: the port is in use, the file cannot be written.
  explicit Host(const MeetingPoint& point);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  Listener& listener() { return listener_; }
  [[nodiscard]] const std::string& key() const { return key_; }  // "-": none was agreed
  // Everybody is here: nobody needs the file any more.
  void remove_file();

 private:
  Listener listener_;
  std::string key_, file_;
};

// Another rank: a link to rank 0 and the key it wants to hear. Throws UsageError: nobody there in
// time, an unreadable file; returns null when interrupted.
struct Found {
  std::unique_ptr<Link> link;
  std::string key, address;
};
Found find_host(const MeetingPoint& point, LinkClock::time_point deadline,
                const std::atomic<int>& interrupt);

}  // namespace dropless::conformance
