// SPDX-License-Identifier: Apache-2.0
// Outcomes to JUnit XML.
#include "conformance/report/junit.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "conformance/report/summary.h"

namespace dropless::conformance {
namespace {

// XML 1.0 allows no control characters; bytes beyond ASCII may be cut-off UTF-8 of somebody else.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\n':
        out += "&#10;";
        break;
      default:
        out += c >= ' ' && c < 127 ? c : '?';
    }
  }
  return out;
}

const char* element_for(Status status) {
  switch (status) {
    case Status::pass:
      return nullptr;
    case Status::not_supported:
    case Status::skipped_by_tier:
    case Status::waived:
      return "skipped";
    case Status::fail:
    case Status::mistrusted:
    case Status::flaky:
      return "failure";
    default:
      return "error";
  }
}

std::string test_case(const Outcome& outcome, const Reproduction& how) {
  const Verdict& verdict = outcome.verdict;
  std::string text =
      fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.6f}\"",
                  escaped(outcome.id.family), escaped(outcome.id.text()), verdict.seconds);
  const char* element = element_for(verdict.status);
  if (element == nullptr) return text + "/>\n";
  text += ">\n";
  const std::string message = escaped(fmt::format("{}: {}", name(verdict.status), verdict.reason));
  if (std::string_view(element) == "skipped") {
    text += fmt::format("      <skipped message=\"{}\"/>\n", message);
  } else {
    text += fmt::format("      <{0} type=\"{1}\" message=\"{2}\">{3}</{0}>\n", element,
                        name(verdict.status), message, escaped(failure_text(outcome, how)));
  }
  return text + "    </testcase>\n";
}

std::string properties(const nlohmann::ordered_json& header) {
  const auto& suite = header.at("suite");
  const auto& implementation = header.at("implementation");
  std::string text = "    <properties>\n";
  const std::pair<const char*, std::string> pairs[] = {
      {"suite", suite.at("version")},
      {"commit", suite.at("commit")},
      {"clauses", suite.at("clauses")},
      {"implementation", implementation.at("name")},
      {"implementation_version", implementation.at("version")},
      {"machine", header.at("machine").at("cpu")}};
  for (const auto& [key, value] : pairs) {
    text += fmt::format("      <property name=\"{}\" value=\"{}\"/>\n", key, escaped(value));
  }
  return text + "    </properties>\n";
}

std::string counted(const Part& part) {
  std::int64_t failures = 0, errors = 0, skipped = 0;
  for (const auto& [status, count] : part.counts) {
    const std::string_view element = element_for(status) == nullptr ? "" : element_for(status);
    failures += element == "failure" ? count : 0;
    errors += element == "error" ? count : 0;
    skipped += element == "skipped" ? count : 0;
  }
  return fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.6f}\"",
                     part.cases(), failures, errors, skipped, part.seconds);
}

}  // namespace

std::string junit_xml(const nlohmann::ordered_json& header, const std::vector<Outcome>& outcomes,
                      const Reproduction& how) {
  const Summary summary = summarize(outcomes);
  std::string text =
      fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"dropless\" {}>\n",
                  counted(summary.all));
  for (const Part& stage : summary.stages) {
    text += fmt::format("  <testsuite name=\"{}\" timestamp=\"{}\" {}>\n", escaped(stage.name),
                        header.at("started").get<std::string>().substr(0, 19), counted(stage));
    text += properties(header);
    for (const Outcome& outcome : outcomes) {
      if (stage_of(outcome.id) == stage.name) text += test_case(outcome, how);
    }
    text += "  </testsuite>\n";
  }
  return text + "</testsuites>\n";
}

void check_writable(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (access(folder.c_str(), W_OK) == 0 && !std::filesystem::is_directory(path)) return;
  throw UsageError(
      fmt::format("{} cannot be written ({}); name a file in a folder that exists", path,
                  std::filesystem::is_directory(path) ? "it is a folder" : std::strerror(errno)));
}

void write_file(const std::string& path, const std::string& text) {
  const std::string unfinished = fmt::format("{}.{}", path, getpid());
  std::error_code error;
  {
    std::ofstream file(unfinished, std::ios::binary);
    file << text;
    if (!file.flush()) error = {errno, std::generic_category()};
  }
  if (!error) std::filesystem::rename(unfinished, path, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);
  throw UsageError(
      fmt::format("{} cannot be written ({}); name another file", path, error.message()));
}

}  // namespace dropless::conformance
