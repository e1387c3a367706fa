// SPDX-License-Identifier: Apache-2.0
// TCP sockets with time-outs and with errors that say what to do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/ranks/link.h"

namespace dropless::conformance {

class Listener {
 public:
  // Port 0: any free one. Throws UsageError: the port is taken, or cannot be had.
  explicit Listener(int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  // A connection that is waiting, or null.
  [[nodiscard]] std::unique_ptr<Link> accept();

 private:
  int descriptor_ = -1, port_ = 0;
};

// One attempt at every address of `host`; null when nobody answers there, with `why`.
std::unique_ptr<Link> try_to_connect(const std::string& host, int port, std::string& why);

// Names and addresses under which other machines may reach this one, the most likely first.
std::vector<std::string> own_addresses();
std::string own_host_name();

}  // namespace dropless::conformance
