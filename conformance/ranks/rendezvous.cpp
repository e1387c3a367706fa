// SPDX-License-Identifier: Apache-2.0
// A port, a file or a broadcast.
#include "conformance/ranks/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>
#include <thread>

#include "conformance/cases/case_id.h"
#include "conformance/ranks/broadcast.h"

namespace dropless::conformance {
namespace {

constexpr auto between_attempts = std::chrono::milliseconds(100);

std::string random_key() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

// "key port host address,address": what rank 0 lets the others know.
struct Address {
  std::string key, host;
  int port = 0;
  std::vector<std::string> addresses;
};

std::string text_of(const std::string& key, int port) {
  return fmt::format("{} {} {} {}", key, port, own_host_name(), fmt::join(own_addresses(), ","));
}

std::optional<Address> address_from(const std::string& text) {
  std::istringstream stream(text);
  Address address;
  std::string list;
  if (!(stream >> address.key >> address.port >> address.host >> list)) return std::nullopt;
  if (address.host == own_host_name()) address.addresses.emplace_back("127.0.0.1");
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) address.addresses.push_back(item);
  return address;
}

UsageError cannot(const std::string& file, const char* what, int error) {
  return UsageError(
      fmt::format("the rendezvous file {} cannot be {}: {}; set DROPLESS_RENDEZVOUS "
                  "to a file that all ranks can read and rank 0 can write",
                  file, what, std::strerror(error)));
}

// Other ranks see the whole file or none: it is written aside and renamed.
void write_address(const std::string& file, const std::string& text) {
  const std::string aside = fmt::format("{}.{}", file, getpid());
  const int descriptor = open(aside.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (descriptor < 0) throw cannot(file, "written", errno);
  const std::string line = text + "\n";
  const bool written =
      write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  close(descriptor);
  if (written && std::rename(aside.c_str(), file.c_str()) == 0) return;
  const int error = errno;
  unlink(aside.c_str());
  throw cannot(file, "written", error);
}

// None: it is not there yet.
std::optional<Address> read_address(const std::string& file) {
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    std::error_code ignored;
    if (errno != ENOENT || (!folder.empty() && !std::filesystem::is_directory(folder, ignored))) {
      throw cannot(file, "read", errno);
    }
    return std::nullopt;
  }
  char text[4096];
  const ssize_t count = read(descriptor, text, sizeof text);
  const int error = errno;
  close(descriptor);
  if (count < 0) throw cannot(file, "read", error);
  return address_from({text, static_cast<std::size_t>(count)});
}

}  // namespace

Host::Host(const MeetingPoint& point) : listener_(point.port), key_("-") {
  if (point.kind == MeetingPoint::Kind::address) return;
  key_ = random_key();
  const std::string text = text_of(key_, listener_.port());
  if (point.kind == MeetingPoint::Kind::broadcast) {
    (void)broadcast(text);
    return;
  }
  write_address(point.file, text);
  file_ = point.file;
}

void Host::remove_file() {
  if (!file_.empty()) unlink(file_.c_str());
  file_.clear();
}

Host::~Host() {
  remove_file();
}

Found find_host(const MeetingPoint& point, LinkClock::time_point deadline,
                const std::atomic<int>& interrupt) {
  Found found;
  std::optional<Address> address;
  std::string why = point.kind == MeetingPoint::Kind::file
                        ? fmt::format("{} is not there", point.file)
                        : "nobody was asked";
  if (point.kind == MeetingPoint::Kind::address) {
    address = Address{"-", point.host, point.port, {point.host}};
  } else if (point.kind == MeetingPoint::Kind::broadcast) {
    address = address_from(broadcast(""));
  }
  const auto began = LinkClock::now();
  while (interrupt == 0) {
    // A file may be left over from an earlier run until rank 0 writes it anew.
    if (point.kind == MeetingPoint::Kind::file) address = read_address(point.file);
    if (address) {
      for (const std::string& one : address->addresses) {
        found.link = try_to_connect(one, address->port, why);
        if (!found.link) continue;
        found.key = address->key;
        found.address = fmt::format("{}:{}", one, address->port);
        return found;
      }
    }
    if (LinkClock::now() >= deadline) {
      throw UsageError(fmt::format(
          "rank 0 was not found within {:.3g} s ({}); start it, or raise --join-timeout",
          std::chrono::duration<double>(deadline - began).count(), why));
    }
    std::this_thread::sleep_for(between_attempts);
  }
  return found;
}

}  // namespace dropless::conformance
