// SPDX-License-Identifier: Apache-2.0
// Lines over descriptors.
#include "conformance/ranks/link.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>

namespace dropless::conformance {
namespace {

constexpr std::size_t longest_line = 256u << 20;

int milliseconds_to(LinkClock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - LinkClock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 1000));
}

// A pipe has no MSG_NOSIGNAL: the signal is held back, and taken if it came.
ssize_t write_to_pipe(int descriptor, const char* data, std::size_t size) {
  sigset_t signals, before, pending;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  const ssize_t count = write(descriptor, data, size);
  const int error = errno;
  if (count < 0 && error == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec at_once{};
    (void)sigtimedwait(&signals, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return count;
}

// No SIGPIPE, whatever the process thinks of it.
ssize_t write_quietly(int descriptor, const char* data, std::size_t size) {
  const ssize_t count = ::send(descriptor, data, size, MSG_NOSIGNAL);
  return count < 0 && errno == ENOTSOCK ? write_to_pipe(descriptor, data, size) : count;
}

}  // namespace

Link::Link(int read_end, int write_end) : read_end_(read_end), write_end_(write_end) {
  for (const int end : {read_end_, write_end_}) {
    fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
    fcntl(end, F_SETFD, FD_CLOEXEC);
  }
}

Link::~Link() {
  close(read_end_);
  if (write_end_ != read_end_) close(write_end_);
}

void Link::send(std::string_view line) {
  queued_.append(line).append("\n");
  (void)flush();
}

bool Link::flush() {
  std::size_t sent = 0;
  bool here = true;
  while (sent < queued_.size()) {
    const ssize_t count = write_quietly(write_end_, queued_.data() + sent, queued_.size() - sent);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      here = errno == EAGAIN;
      break;
    }
  }
  queued_.erase(0, sent);
  if (!here) queued_.clear();  // nobody will ever read it; what was said before is still readable
  return here;
}

bool Link::flush_until(LinkClock::time_point deadline) {
  while (flush() && has_output()) {
    if (LinkClock::now() >= deadline) return false;
    pollfd ready{write_end_, POLLOUT, 0};
    poll(&ready, 1, milliseconds_to(deadline));
  }
  return !has_output();
}

std::vector<std::string> Link::take_lines() {
  std::vector<std::string> lines = std::move(ready_);
  ready_.clear();
  char chunk[1 << 16];
  while (open_) {
    const ssize_t count = read(read_end_, chunk, sizeof chunk);
    if (count > 0) {
      partial_.append(chunk, static_cast<std::size_t>(count));
      if (partial_.size() > longest_line) open_ = false;
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else {
      if (count == 0 || errno != EAGAIN) open_ = false;
      break;
    }
  }
  std::size_t begin = 0;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos;
       end = partial_.find('\n', begin)) {
    lines.push_back(partial_.substr(begin, end - begin));
    begin = end + 1;
  }
  partial_.erase(0, begin);
  return lines;
}

std::optional<std::string> Link::next_line(LinkClock::time_point deadline) {
  for (;;) {
    if (ready_.empty()) ready_ = take_lines();
    if (!ready_.empty()) {
      std::string line = std::move(ready_.front());
      ready_.erase(ready_.begin());
      return line;
    }
    if (!open_ || LinkClock::now() >= deadline) return std::nullopt;
    wait_for({this}, {}, milliseconds_to(deadline));
  }
}

void wait_for(const std::vector<Link*>& links, const std::vector<int>& others, int milliseconds) {
  std::vector<pollfd> descriptors;
  for (const Link* link : links) {
    if (link == nullptr) continue;
    if (link->open()) descriptors.push_back({link->read_end(), POLLIN, 0});
    if (link->has_output()) descriptors.push_back({link->write_end(), POLLOUT, 0});
  }
  for (const int other : others) {
    if (other >= 0) descriptors.push_back({other, POLLIN, 0});
  }
  poll(descriptors.data(), descriptors.size(), milliseconds);
}

std::string hex_of(std::string_view bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += digits[byte >> 4];
    hex += digits[byte & 15];
  }
  return hex;
}

std::optional<std::string> bytes_of(std::string_view hex) {
  const auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const int high = value(hex[i]), low = value(hex[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace dropless::conformance
