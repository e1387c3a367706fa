// SPDX-License-Identifier: Apache-2.0
// Read from /proc, /etc and the scheduler.
#include "conformance/report/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace dropless::conformance {
namespace {

// The value of the first line `key<separator>value` of a file.
std::string value_in(const char* path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string value = line.substr(at + 1);
    std::erase(value, '"');
    value.erase(0, value.find_first_not_of(" \t"));
    if (!value.empty()) return value;
  }
  return "unknown";
}

// CPU time per period of a control group, in cores; 0 when unlimited.
double granted_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period && period > 0 ? quota / period : 0;
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (const double granted = granted_cores(); granted > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(granted)));
  }
  return std::max(cores, 1);
}

nlohmann::ordered_json describe_machine() {
  utsname names{};
  uname(&names);
  return {{"host", names.nodename},
          {"cpu", value_in("/proc/cpuinfo", "model name", ':')},
          {"architecture", names.machine},
          {"cores", sysconf(_SC_NPROCESSORS_CONF)},
          {"usable_cores", usable_cores()},
          {"memory_mib", sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / (1 << 20)},
          {"system", value_in("/etc/os-release", "PRETTY_NAME", '=')},
          {"kernel", std::string(names.sysname) + " " + names.release}};
}

}  // namespace dropless::conformance
