// SPDX-License-Identifier: Apache-2.0
// dropless tolerances: how tight every bound is, and how often the statistical rules are wrong.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <ostream>
#include <sstream>

#include "conformance/adapters/measured_bounds.h"
#include "conformance/command_line/session.h"

namespace dropless::conformance {
namespace {

constexpr std::int64_t default_runs = 20000;
constexpr std::string_view opening = "<!-- dropless tolerances -->",
                           closing = "<!-- end of dropless tolerances -->";

struct TolerancesOptions {
  std::string update;
  std::optional<std::string> runs;
  bool markdown = false;
};

struct Table {
  std::vector<std::vector<std::string>> rows;  // the first one is the heading
};

std::string plain(const Table& table) {
  std::vector<std::size_t> widths(table.rows.front().size());
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) text += fmt::format("{:<{}}  ", row[c], widths[c]);
    text.resize(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::string markdown(const Table& table) {
  std::string text;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    text += '|';
    for (std::string cell : table.rows[r]) {
      // A bar inside a cell would end it.
      for (std::size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2) {
        cell.insert(at, "\\");
      }
      text += fmt::format(" {} |", cell);
    }
    text += '\n';
    if (r > 0) continue;
    for (std::size_t c = 0; c < table.rows[0].size(); ++c) text += "|---";
    text += "|\n";
  }
  return text;
}

struct Bounds {
  Table table;
  std::vector<std::string> broken;
};

Bounds bounds() {
  Bounds found;
  found.table.rows.push_back({"bound", "derivation", "honest maximum", "by",
                              "smallest fault caught", "at", "fault of its size class",
                              "elements"});
  for (const MeasuredBound& row : measured_bounds()) {
    found.table.rows.push_back({row.bound, row.derivation, fmt::format("{:.3f}", row.honest),
                                row.honest_name, row.fault_name, fmt::format("{:.3g}", row.fault),
                                row.size_class, std::to_string(row.elements)});
    if (!row.complaint.empty()) found.broken.push_back(row.bound + ": " + row.complaint);
  }
  return found;
}

Bounds rules(std::int64_t runs) {
  Bounds found;
  found.table.rows.push_back({"rule", "threshold", "nominal rate", "alarms", "runs",
                              "simulated rate", "95 % interval", "largest statistic / threshold"});
  for (const MeasuredRule& rule : measured_rules(runs)) {
    const double rate = static_cast<double>(rule.alarms) / static_cast<double>(rule.runs);
    found.table.rows.push_back(
        {rule.rule, rule.in_use ? rule.threshold : rule.threshold + " (not in use)",
         rule.nominal < 0 ? "not known" : fmt::format("{:.2g}", rule.nominal),
         std::to_string(rule.alarms), std::to_string(rule.runs), fmt::format("{:.2g}", rate),
         fmt::format("{:.2g} to {:.2g}", rule.low, rule.high),
         fmt::format("{:.3f}", rule.largest)});
    if (rule.in_use && rule.alarms > 0) {
      found.broken.push_back(fmt::format("{}: {} false alarms", rule.rule, rule.alarms));
    }
  }
  return found;
}

std::string page(const Bounds& all, const Bounds& statistics) {
  return fmt::format("\n{}\n### Statistical rules\n\n{}\n", markdown(all.table),
                     markdown(statistics.table));
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw UsageError(fmt::format("{} cannot be read", path));
  return text.str();
}

struct Place {
  std::string before, after;
};
// Throws UsageError: no markers.
Place place_in(const std::string& path) {
  const std::string text = contents_of(path);
  const std::size_t begin = text.find(opening), end = text.find(closing);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    throw UsageError(fmt::format("{} has no lines '{}' and '{}'", path, opening, closing));
  }
  return {text.substr(0, begin + opening.size()), text.substr(end)};
}

void run_tolerances(Session& session, const TolerancesOptions& options) {
  const std::int64_t runs =
      options.runs ? whole_number("--runs", *options.runs, 8, 100000000) : default_runs;
  std::optional<Place> place;
  if (!options.update.empty()) place = place_in(options.update);  // refused before the work
  const Bounds all = bounds();
  if (!options.markdown) session.out << plain(all.table) << '\n' << std::flush;
  const Bounds statistics = rules(runs);
  if (options.markdown) {
    session.out << page(all, statistics);
  } else {
    session.out << plain(statistics.table) << '\n';
  }
  if (place) {
    std::ofstream file(options.update);
    file << place->before << '\n' << page(all, statistics) << place->after;
    if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", options.update));
  }
  for (const Bounds* part : {&all, &statistics}) {
    for (const std::string& line : part->broken) session.err << "dropless: " << line << '\n';
  }
  session.exit_code = all.broken.empty() && statistics.broken.empty() ? 0 : 1;
}

}  // namespace

void add_tolerances(CLI::App& app, Session& session) {
  auto options = std::make_shared<TolerancesOptions>();
  CLI::App* command = app.add_subcommand(
      "tolerances", "How tight the bounds are: honest maximum, and the smallest fault they catch");
  command->add_flag("--markdown", options->markdown, "print Markdown");
  command
      ->add_option("--update", options->update, "write the tables between the marks of this page")
      ->type_name("FILE");
  command
      ->add_option("--runs", options->runs,
                   "simulated runs of each statistical rule (default: 20000)")
      ->type_name("N");
  command->callback([options, &session] { run_tolerances(session, *options); });
}

}  // namespace dropless::conformance
