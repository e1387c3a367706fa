// SPDX-License-Identifier: Apache-2.0
// Reading a results file back: everything that is not as it was written is refused.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "conformance/report/results.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr int schema = 1;

[[noreturn]] void damaged(const std::string& path, std::size_t line, const std::string& what) {
  throw UsageError(
      fmt::format("{}, line {}: {}; the file is damaged and was left as it is, start a new run",
                  path, line, what));
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) {
    throw UsageError(fmt::format("results file {} cannot be read ({}); give an existing one", path,
                                 std::strerror(errno)));
  }
  return text.str();
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Results read() {
    const std::string text = contents(path_);
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos;
         end = text.find('\n', begin)) {
      ++line_;
      take(text.substr(begin, end - begin));
      begin = end + 1;
    }
    results_.sound_bytes = begin;
    if (line_ == 0) {
      throw UsageError(
          fmt::format("{} holds no complete header, so nothing is lost; start a new run", path_));
    }
    if (results_.complete && begin != text.size())
      damaged(path_, line_ + 1, "text after the footer");
    return std::move(results_);
  }

 private:
  void take(const std::string& line) {
    try {
      const Json record = Json::parse(line);
      const auto kind = record.at("record").get<std::string>();
      if (results_.complete) damaged(path_, line_, "a record after the footer");
      if ((kind == "header") != (line_ == 1)) damaged(path_, line_, "the header must be line 1");
      if (kind == "header") {
        take_header(record);
      } else if (kind == "case") {
        take_case(record);
      } else if (kind == "footer") {
        if (record.at("cases") != results_.outcomes.size()) {
          damaged(path_, line_, "the footer counts other cases than the file holds");
        }
        results_.complete = true;
      } else if (kind != "resumed") {
        damaged(path_, line_, fmt::format("unknown record '{}'", kind));
      }
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception&) {
      damaged(path_, line_, "not a record of a results file");
    }
  }

  void take_header(const Json& record) {
    if (record.at("schema") != schema) {
      throw UsageError(
          fmt::format("{} has results of schema {}, this suite reads schema {}; use the "
                      "suite that wrote it",
                      path_, record.at("schema").dump(), schema));
    }
    for (const char* part : {"suite", "implementation", "selection", "settings", "machine"}) {
      if (!record.at(part).is_object()) damaged(path_, line_, fmt::format("no {} in it", part));
    }
    results_.header = record;
  }

  void take_case(const Json& record) {
    Outcome outcome = outcome_from(record);
    const std::string id = outcome.id.text();
    if (!seen_.insert(id).second) damaged(path_, line_, fmt::format("case {} is there twice", id));
    results_.outcomes.push_back(std::move(outcome));
  }

  const std::string& path_;
  std::size_t line_ = 0;
  Results results_;
  std::set<std::string> seen_;
};

// The parts of the description of an implementation by which it is the same one.
Json identity_of(const Json& implementation) {
  Json parts;
  for (const char* key : {"name", "version", "build", "fingerprint", "profile", "offers"}) {
    parts[key] = implementation.value(key, Json());
  }
  return parts;
}

Json identity_of_suite(const Json& suite) {
  Json parts;
  for (const char* key : {"version", "commit", "contract", "clauses"}) {
    parts[key] = suite.value(key, Json());
  }
  return parts;
}

}  // namespace

Results read_results(const std::string& path) {
  return Reader(path).read();
}

void check_resumable(const std::string& path, const Results& results, const Json& header) {
  const auto refuse = [&](const std::string& difference) {
    throw UsageError(fmt::format("{} cannot be resumed: {}; start a new run", path, difference));
  };
  const Json old_suite = identity_of_suite(results.header.value("suite", Json::object()));
  const Json new_suite = identity_of_suite(header.at("suite"));
  for (const auto& [key, value] : new_suite.items()) {
    if (old_suite.at(key) != value) {
      refuse(fmt::format("its suite has {} {}, this one has {}", key, old_suite.at(key).dump(),
                         value.dump()));
    }
  }
  const Json old_one = identity_of(results.header.value("implementation", Json::object()));
  const Json new_one = identity_of(header.at("implementation"));
  for (const auto& [key, value] : new_one.items()) {
    if (old_one.at(key) == value) continue;
    const bool brief = value.is_string() && old_one.at(key).is_string();
    refuse(brief ? fmt::format("its implementation has {} {}, this one has {}", key,
                               old_one.at(key).dump(), value.dump())
                 : fmt::format("its implementation has another {}", key));
  }
  if (results.header.value("case_list", Json()) != header.at("case_list") ||
      results.header.value("settings", Json()) != header.at("settings")) {
    refuse("it was a run of other cases or settings");
  }
}

}  // namespace dropless::conformance
