// SPDX-License-Identifier: Apache-2.0
// Parses the normative text into clauses.
#include "conformance/clauses/clauses.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>

#include "conformance/cases/embedded.h"

namespace dropless::conformance {
namespace {

constexpr std::array stages = {"general",      "routing",    "permutation", "mxfp8",
                               "grouped_gemm", "activation", "exchange",    "losses",
                               "optimizer",    "layer",      "training"};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r' || text.back() == '\n')) {
    text.remove_suffix(1);
  }
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
  return text;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

// STAGE-<digits><optional lower letters>
bool is_clause_id(std::string_view id, const std::string& stage) {
  const std::string prefix = upper(stage) + "-";
  if (id.substr(0, prefix.size()) != prefix) return false;
  id.remove_prefix(prefix.size());
  const std::size_t digits = std::min(id.find_first_not_of("0123456789"), id.size());
  if (digits == 0) return false;
  return std::all_of(id.begin() + static_cast<std::ptrdiff_t>(digits), id.end(),
                     [](char c) { return c >= 'a' && c <= 'z'; });
}

class Parser {
 public:
  Parser(std::string_view file, std::string_view text) : file_(file), rest_(text) {
    stage_ = std::string(file.substr(0, file.rfind('.')));
  }

  std::vector<Clause> parse() {
    bool titled = false;
    while (next_line()) {
      if (line_.substr(0, 3) == "## ") {
        if (!titled) complain("a clause before the title ('# Stage')");
        begin_clause();
      } else if (line_.substr(0, 2) == "# ") {
        if (titled) complain("a second title");
        titled = true;
      } else if (!clauses_.empty()) {
        if (!read_field()) text_ += std::string(line_) + "\n";
      }
    }
    finish_clause();
    if (clauses_.empty()) complain("no clause");
    return std::move(clauses_);
  }

 private:
  [[noreturn]] void complain(std::string_view problem) const {
    throw std::invalid_argument(fmt::format("{}:{}: {}", file_, number_, problem));
  }

  bool next_line() {
    if (rest_.empty()) return false;
    const std::size_t end = rest_.find('\n');
    line_ = trimmed(rest_.substr(0, end));
    rest_ = end == std::string_view::npos ? std::string_view{} : rest_.substr(end + 1);
    ++number_;
    return true;
  }

  void begin_clause() {
    finish_clause();
    const std::string_view heading = line_.substr(3);
    const std::size_t colon = heading.find(": ");
    if (colon == std::string_view::npos) complain("the heading must be '## STAGE-1a: Title'");
    Clause clause;
    clause.id = heading.substr(0, colon);
    clause.title = trimmed(heading.substr(colon + 2));
    clause.stage = stage_;
    if (!is_clause_id(clause.id, stage_)) {
      complain(fmt::format("'{}' is not a clause id of {}", clause.id, upper(stage_)));
    }
    if (clause.title.empty()) complain(clause.id + " has no title");
    if (!ids_.insert(clause.id).second) complain(clause.id + " occurs twice");
    clauses_.push_back(std::move(clause));
  }

  bool read_field() {
    Clause& clause = clauses_.back();
    if (!trimmed(text_).empty()) return false;  // fields come before the text
    return take("Kind: ", clause.kind, {"required", "profile", "setting"}) ||
           take("Class: ", clause.accuracy_class, {"exact", "ulp", "bounded", "statistical"}) ||
           take("Source: ", clause.source, {});
  }

  bool take(std::string_view key, std::string& field, const std::vector<std::string>& allowed) {
    if (line_.substr(0, key.size()) != key) return false;
    if (!field.empty()) complain(fmt::format("'{}' occurs twice", trimmed(key)));
    field = trimmed(line_.substr(key.size()));
    if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), field) == allowed.end()) {
      complain(fmt::format("'{}{}' is not one of {}", key, field, fmt::join(allowed, ", ")));
    }
    return true;
  }

  void finish_clause() {
    if (clauses_.empty()) return;
    Clause& clause = clauses_.back();
    clause.text = trimmed(text_);
    text_.clear();
    for (const auto& [name, value] : {std::pair{"Kind", &clause.kind},
                                      {"Class", &clause.accuracy_class},
                                      {"Source", &clause.source},
                                      {"text", &clause.text}}) {
      if (value->empty()) complain(fmt::format("{} has no {}", clause.id, name));
    }
  }

  std::string_view file_, rest_, line_;
  std::string stage_, text_;
  int number_ = 0;
  std::vector<Clause> clauses_;
  std::set<std::string> ids_;
};

std::vector<Clause> parse_all() {
  std::vector<Clause> out;
  for (const char* stage : stages) {
    const std::string name = std::string(stage) + ".md";
    for (const EmbeddedFile& file : embedded_clauses()) {
      if (file.name != name) continue;
      std::vector<Clause> parsed = parse_clauses(file.name, file.text);
      out.insert(out.end(), parsed.begin(), parsed.end());
    }
  }
  return out;
}

}  // namespace

std::vector<Clause> parse_clauses(std::string_view file_name, std::string_view text) {
  return Parser(file_name, text).parse();
}

const std::vector<Clause>& clauses() {
  static const std::vector<Clause> all = [] {
    try {
      for (const EmbeddedFile& file : embedded_clauses()) {
        const std::string_view stage = file.name.substr(0, file.name.rfind('.'));
        if (std::find(stages.begin(), stages.end(), stage) == stages.end()) {
          throw std::invalid_argument(fmt::format("{}: no such stage", file.name));
        }
      }
      return parse_all();
    } catch (const std::invalid_argument& error) {
      throw std::logic_error(error.what());
    }
  }();
  return all;
}

const Clause* find_clause(std::string_view id) {
  const auto found = std::find_if(clauses().begin(), clauses().end(),
                                  [&](const Clause& clause) { return clause.id == id; });
  return found == clauses().end() ? nullptr : &*found;
}

}  // namespace dropless::conformance
