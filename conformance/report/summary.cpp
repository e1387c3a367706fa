// SPDX-License-Identifier: Apache-2.0
// Counts, tables, exit code.
#include "conformance/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "conformance/report/results.h"

namespace dropless::conformance {
namespace {

constexpr std::array stage_order = {"routing",    "permutation", "mxfp8",  "grouped_gemm",
                                    "activation", "exchange",    "losses", "optimizer",
                                    "layer",      "training"};

std::size_t place_of(const std::string& stage) {
  return static_cast<std::size_t>(std::find(stage_order.begin(), stage_order.end(), stage) -
                                  stage_order.begin());
}

void add(Part& part, const Outcome& outcome) {
  ++part.counts[outcome.verdict.status];
  part.seconds += outcome.verdict.seconds;
  if (const std::string model = model_of(outcome.id); !model.empty()) part.models.insert(model);
}

Part& part_named(std::vector<Part>& parts, const std::string& name) {
  for (Part& part : parts) {
    if (part.name == name) return part;
  }
  parts.push_back({name, {}, 0, {}});
  return parts.back();
}

std::string row(const Part& part, std::size_t width) {
  const std::int64_t named = part.count(Status::pass) + part.count(Status::fail) +
                             part.count(Status::mistrusted) + part.count(Status::not_supported);
  return fmt::format("{:<{}} {:>7} {:>7} {:>6} {:>10} {:>12} {:>6} {:>7} {:>8.1f}s  {}\n",
                     part.name, width, part.cases(), part.count(Status::pass),
                     part.count(Status::fail), part.count(Status::mistrusted),
                     part.count(Status::not_supported), part.cases() - named, part.models.size(),
                     part.seconds, verdict_of(part));
}

}  // namespace

std::int64_t Part::cases() const {
  std::int64_t sum = 0;
  for (const auto& [status, count] : counts) sum += count;
  return sum;
}

std::int64_t Part::count(Status status) const {
  const auto found = counts.find(status);
  return found == counts.end() ? 0 : found->second;
}

std::int64_t Part::unacceptable() const {
  std::int64_t sum = 0;
  for (const auto& [status, count] : counts) sum += acceptable(status) ? 0 : count;
  return sum;
}

Summary summarize(const std::vector<Outcome>& outcomes) {
  Summary summary;
  summary.all.name = "all";
  for (const Outcome& outcome : outcomes) {
    add(summary.all, outcome);
    add(part_named(summary.stages, stage_of(outcome.id)), outcome);
    if (const std::string model = model_of(outcome.id); !model.empty()) {
      add(part_named(summary.models, model), outcome);
    }
    summary.checks += outcome.verdict.checks;
  }
  std::stable_sort(summary.stages.begin(), summary.stages.end(), [](const Part& a, const Part& b) {
    return place_of(a.name) < place_of(b.name);
  });
  std::sort(summary.models.begin(), summary.models.end(),
            [](const Part& a, const Part& b) { return a.name < b.name; });
  return summary;
}

int exit_code(const Summary& summary) {
  return summary.all.unacceptable() == 0 && summary.all.count(Status::pass) > 0 ? 0 : 1;
}

std::string verdict_of(const Part& part) {
  if (part.unacceptable() > 0) return "NO-GO";
  return part.count(Status::pass) > 0 ? "GO" : "not offered";
}

std::string stage_table(const Summary& summary) {
  std::size_t width = 5;
  for (const Part& part : summary.stages) width = std::max(width, part.name.size());
  std::string text = fmt::format("{:<{}} {:>7} {:>7} {:>6} {:>10} {:>12} {:>6} {:>7} {:>9}  {}\n",
                                 "stage", width, "cases", "pass", "fail", "mistrusted",
                                 "not offered", "other", "models", "time", "verdict");
  for (const Part& part : summary.stages) text += row(part, width);
  if (summary.stages.size() > 1) text += row(summary.all, width);
  return text;
}

std::string model_lines(const Summary& summary) {
  std::size_t width = 5;
  for (const Part& part : summary.models) width = std::max(width, part.name.size());
  std::string text;
  for (const Part& part : summary.models) {
    text += fmt::format("{:<{}}  {:<11}  {}\n", part.name, width, verdict_of(part),
                        in_words(part.counts));
  }
  return text;
}

std::string in_words(const Counts& counts) {
  std::vector<std::string> parts;
  for (const auto& [status, count] : counts) {
    if (count > 0) parts.push_back(fmt::format("{} {}", count, name(status)));
  }
  return parts.empty() ? "no cases" : fmt::format("{}", fmt::join(parts, ", "));
}

nlohmann::ordered_json footer_of(const Summary& summary, double seconds) {
  nlohmann::ordered_json counts = nlohmann::ordered_json::object();
  for (const auto& [status, count] : summary.all.counts) counts[std::string(name(status))] = count;
  return {{"record", "footer"},       {"cases", summary.all.cases()},    {"counts", counts},
          {"checks", summary.checks}, {"exit_code", exit_code(summary)}, {"seconds", seconds},
          {"ended", utc_now()}};
}

}  // namespace dropless::conformance
