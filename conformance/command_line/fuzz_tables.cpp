// SPDX-License-Identifier: Apache-2.0
// Tables of fuzz runs.
#include "conformance/command_line/fuzz_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "conformance/report/summary.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string plural(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

const char* verdict_of(const FuzzReport& report) {
  if (!report.findings.empty()) return "FAIL";
  if (report.count(Status::pass) == 0) return "FAIL (nothing passed)";
  return report.shares_met() ? "PASS" : "MISTRUSTED (the cases drawn were too much alike)";
}

// Cases until the fault was found, sorted.
std::vector<std::int64_t> cases_of(const std::vector<FuzzedFault>& all, const std::string& stage) {
  std::vector<std::int64_t> cases;
  for (const FuzzedFault& one : all) {
    if (one.killer && (stage.empty() || one.fault.stage() == stage)) cases.push_back(one.cases);
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

std::int64_t quantile(const std::vector<std::int64_t>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto place = static_cast<std::size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(place, sorted.size() - 1)];
}

std::int64_t faults_of(const std::vector<FuzzedFault>& all, const std::string& stage) {
  return std::count_if(all.begin(), all.end(), [&](const FuzzedFault& one) {
    return stage.empty() || one.fault.stage() == stage;
  });
}

std::vector<std::string> stages_of(const std::vector<FuzzedFault>& all) {
  std::vector<std::string> stages;
  for (const FuzzedFault& one : all) {
    if (std::find(stages.begin(), stages.end(), one.fault.stage()) == stages.end()) {
      stages.push_back(one.fault.stage());
    }
  }
  return stages;
}

std::string row(const std::vector<FuzzedFault>& all, const std::string& stage) {
  const std::vector<std::int64_t> cases = cases_of(all, stage);
  const std::int64_t faults = faults_of(all, stage), found = std::ssize(cases);
  return fmt::format("{:<14} {:>6} {:>6} {:>7.1f} {:>8} {:>8} {:>8}\n",
                     stage.empty() ? "all" : stage, faults, found, percent(found, faults),
                     quantile(cases, 0.5), quantile(cases, 0.9), quantile(cases, 1));
}

Json row_json(const std::vector<FuzzedFault>& all, const std::string& stage) {
  const std::vector<std::int64_t> cases = cases_of(all, stage);
  return {{"faults", faults_of(all, stage)},
          {"found", cases.size()},
          {"median_cases", quantile(cases, 0.5)},
          {"largest_cases", quantile(cases, 1)}};
}

}  // namespace

std::string finding_text(const FuzzFinding& finding, const Reproduction& how) {
  std::string text =
      fmt::format("{}: {}, the first is number {}\n  {}\n", finding.kind,
                  plural(finding.cases, "case"), finding.number, finding.first.text());
  if (finding.candidates > 0) {
    text += fmt::format("  made smaller in {} ({}{}):\n", plural(finding.steps, "step"),
                        plural(finding.candidates, "candidate"),
                        finding.out_of_time ? ", out of time" : "");
  }
  return text + failure_text(finding.outcome, how) + "\n";
}

std::string shares_text(const FuzzReport& report, bool families) {
  std::string text;
  for (const FuzzShare& share : report.shares) {
    const bool family = share.label.find('.') != std::string::npos;
    if (family && !families && share.met) continue;
    if (share.of == 0 && share.met) continue;
    text +=
        fmt::format("  {:<30} {:>8} of {:>8} {:<26} {:>5.1f} %  required {:>4.1f} %{}\n",
                    share.label, share.count, share.of, share.among, percent(share.count, share.of),
                    100 * share.required, share.met ? "" : "  MISSED");
  }
  return text;
}

std::string last_line(const FuzzReport& report) {
  const double rate = static_cast<double>(report.cases) / std::max(report.seconds, 1e-9);
  return fmt::format("{}: {} ({}), {} checks, {:.1f} s, {:.0f} cases/s\n", verdict_of(report),
                     plural(report.cases, "case"), in_words(report.statuses), report.checks,
                     report.seconds, rate);
}

Json to_json(const FuzzReport& report, const FuzzPlan& plan, const std::string& implementation) {
  Json statuses = Json::object(), findings = Json::array(), shares = Json::array();
  for (const auto& [status, count] : report.statuses) statuses[std::string(name(status))] = count;
  for (const FuzzFinding& one : report.findings) {
    findings.push_back({{"kind", one.kind},
                        {"cases", one.cases},
                        {"number", one.number},
                        {"first", one.first.text()},
                        {"steps", one.steps},
                        {"out_of_time", one.out_of_time},
                        {"smallest", to_json(one.outcome)}});
  }
  for (const FuzzShare& one : report.shares) {
    shares.push_back({{"label", one.label},
                      {"among", one.among},
                      {"count", one.count},
                      {"of", one.of},
                      {"required", one.required},
                      {"met", one.met}});
  }
  return {{"implementation", implementation},
          {"seed", plan.seed},
          {"verdict", verdict_of(report)},
          {"cases", report.cases},
          {"checks", report.checks},
          {"seconds", report.seconds},
          {"shrink_seconds", report.shrink_seconds},
          {"statuses", std::move(statuses)},
          {"findings", std::move(findings)},
          {"shares", std::move(shares)}};
}

std::string fault_text(const FuzzedFault& one) {
  const std::string accused =
      one.accusations > 0 ? fmt::format(", {} failed without the fault too", one.accusations) : "";
  if (!one.killer) {
    return fmt::format("MISSED   {:<46} {}, {} of them not judged{}, {:.1f} s\n", one.fault.name,
                       plural(one.cases, "case"), one.not_judged, accused, one.seconds);
  }
  const Verdict& verdict = one.killer->verdict;
  const std::string clause = verdict.failures.empty() ? std::string(name(verdict.status))
                                                      : verdict.failures.front().clause;
  return fmt::format("found    {:<46} {:<16} case {:>5}{} {:>6.1f} s\n         {}\n",
                     one.fault.name, clause, one.cases, accused, one.seconds,
                     one.killer->id.text());
}

std::string found_table(const std::vector<FuzzedFault>& all) {
  std::string text = fmt::format("{:<14} {:>6} {:>6} {:>7} {:>8} {:>8} {:>8}\n", "stage", "faults",
                                 "found", "%", "median", "9 of 10", "last");
  for (const std::string& stage : stages_of(all)) text += row(all, stage);
  return text + row(all, "");
}

std::string last_line(const std::vector<FuzzedFault>& all) {
  const std::vector<std::int64_t> cases = cases_of(all, "");
  std::string text =
      fmt::format("{} of {} faults found ({:.1f} %), half of them within {}, the last after {}",
                  cases.size(), all.size(), percent(std::ssize(cases), std::ssize(all)),
                  plural(quantile(cases, 0.5), "case"), quantile(cases, 1));
  const auto known = std::count_if(
      all.begin(), all.end(), [](const FuzzedFault& one) { return one.killer && !one.new_values; });
  text += fmt::format("; {} by a case of a tier under another seed", known);
  std::vector<std::string> missed;
  for (const FuzzedFault& one : all) {
    if (!one.killer) missed.push_back(one.fault.name);
  }
  if (!missed.empty()) text += fmt::format("; missed: {}", fmt::join(missed, ", "));
  return text + "\n";
}

Json to_json(const std::vector<FuzzedFault>& all, const FuzzPlan& plan) {
  Json stages = Json::object(), faults = Json::array();
  for (const std::string& stage : stages_of(all)) stages[stage] = row_json(all, stage);
  for (const FuzzedFault& one : all) {
    Json fault = {{"name", one.fault.name},
                  {"found", one.killer.has_value()},
                  {"cases", one.cases},
                  {"not_judged", one.not_judged},
                  {"accusations", one.accusations},
                  {"seconds", one.seconds}};
    if (one.killer) {
      const auto& failures = one.killer->verdict.failures;
      fault["clause"] = failures.empty() ? "" : failures.front().clause;
      fault["first"] = one.first->text();
      fault["new_values"] = one.new_values;
      fault["smallest"] = one.killer->id.text();
    }
    faults.push_back(std::move(fault));
  }
  return {{"cases", *plan.cases},
          {"seed", plan.seed},
          {"all", row_json(all, "")},
          {"stages", std::move(stages)},
          {"faults", std::move(faults)}};
}

}  // namespace dropless::conformance
