// SPDX-License-Identifier: Apache-2.0
// One run from its options to its files.
#include "conformance/command_line/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <ostream>
#include <set>

#include "conformance/adapters/fingerprint.h"
#include "conformance/cases/models.h"
#include "conformance/command_line/progress.h"
#include "conformance/report/build_info.h"
#include "conformance/report/junit.h"
#include "conformance/report/machine.h"
#include "conformance/report/results.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr double default_timeout = 60;
constexpr double longest_timeout = 86400;
constexpr std::size_t failures_shown = 20;

class Execution {
 public:
  Execution(Session& session, const Request& request) : session_(session), request_(request) {}

  Judged judge() {
    check_files();
    if (!request_.results.resume.empty()) {
      writer_.emplace(ResultsWriter::reopen(request_.results.resume));
      earlier_ = read_results(request_.results.resume);
    }
    const Wishes wishes = read_request();
    cases_ = chosen_cases(registry(), wishes);
    SupervisorOptions options = supervisor_options();
    Supervisor supervisor(options);
    judged_.header = header_of(
        {describe_suite(), supervisor.probe(), to_json(wishes), settings(), ids_of(cases_)});
    open_results();
    if (ranks_ > 0) {
      session_.err << fmt::format(
          "dropless: {} ranks: cases that need no other rank are not part of this run; they run "
          "without --ranks\n",
          ranks_);
    }
    const auto start = std::chrono::steady_clock::now();
    run(supervisor);
    judged_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    close();
    return std::move(judged_);
  }

 private:
  void check_files() {
    const ResultOptions& files = request_.results;
    if (!files.resume.empty() && (!files.results.empty() || files.no_results)) {
      throw UsageError(
          "--resume already names the results file; leave out --results and "
          "--no-results");
    }
    if (!files.results.empty() && files.no_results) {
      throw UsageError("--results and --no-results exclude each other; leave one out");
    }
    if (!files.junit.empty()) check_writable(files.junit);
  }

  Wishes read_request() {
    try {
      read_settings();
      return read_wishes();
    } catch (const Json::exception&) {
      throw UsageError(
          fmt::format("{}, line 1: not a header that this suite wrote; the file is "
                      "damaged and was left as it is, start a new run",
                      request_.results.resume));
    }
  }

  // What is not given comes from the interrupted run, or else from the defaults.
  void read_settings() {
    const ImplementationOptions& given = request_.implementation;
    const Json old = earlier_ ? earlier_->header.at("settings") : Json::object();
    const Json old_implementation =
        earlier_ ? earlier_->header.at("implementation") : Json::object();
    worker_.implementation =
        given.implementation.value_or(old_implementation.value("argument", std::string("cpu")));
    worker_.models = given.models.value_or(old.value("models", std::string()));
    if (!worker_.models.empty()) load_models(worker_.models);
    timeout_ = given.timeout ? positive_number("--timeout", *given.timeout, longest_timeout)
                             : old.value("timeout_seconds", default_timeout);
    read_group(old);
    const int cores = usable_cores();
    // One group at a time: it is several processes already, and agents have one rank each.
    const int jobs = worker_.ranks > 0 ? 1 : cores;
    jobs_ = given.jobs ? static_cast<int>(whole_number("--jobs", *given.jobs, 1, 1024)) : jobs;
    if (worker_.launcher == "agents" && jobs_ > 1) {
      throw UsageError(
          fmt::format("--jobs {}: ranks that a launcher has started play one case at a "
                      "time; leave --jobs out",
                      jobs_));
    }
    const int share = std::max(1, cores / (jobs_ * std::max(1, worker_.ranks)));
    worker_.threads = given.threads
                          ? static_cast<int>(whole_number("--threads", *given.threads, 1, 4096))
                          : old.value("threads", share);
    judged_.how = {worker_.implementation, worker_.models, given.threads ? worker_.threads : 0,
                   ranks_, launcher_};
  }

  void read_group(const Json& old) {
    ranks_ = request_.group.ranks;
    launcher_ = request_.group.launcher;
    if (ranks_ == 0 && earlier_) {
      ranks_ = earlier_->header.at("selection").value("ranks", 0);
      launcher_ = old.value("launcher", std::string());
      if (launcher_ == "agents") {
        throw UsageError(
            fmt::format("{} is a run of {} ranks that a launcher had started; resume it under a "
                        "launcher that starts as many",
                        request_.results.resume, ranks_));
      }
    }
    if (ranks_ == 0 || launcher_ == "threads") return;  // ordinary workers do that
    worker_.ranks = ranks_;
    worker_.launcher = launcher_;
    worker_.hub = request_.group.hub;
    worker_.timeout_seconds = timeout_;
  }

  Wishes read_wishes() const {
    const bool as_before = earlier_ && !request_.selection.given();
    Wishes wishes = as_before ? wishes_from(earlier_->header.at("selection"))
                              : request_.selection.read(request_.default_tier);
    wishes.ranks = ranks_;
    return wishes;
  }

  SupervisorOptions supervisor_options() {
    judged_.jobs = std::min<int>(jobs_, static_cast<int>(cases_.size()));
    SupervisorOptions options;
    options.worker = worker_;
    options.jobs = judged_.jobs;
    options.timeout_seconds = timeout_;
    options.interrupt = &session_.interrupt;
    if (const auto& memory = request_.implementation.memory) {
      options.memory_limit_bytes = whole_number("--memory", *memory, 1, 1 << 30) << 20;
    }
    return options;
  }

  Json settings() const {
    Json json{{"command", request_.command},
              {"threads", worker_.threads},
              {"timeout_seconds", timeout_},
              {"models", worker_.models},
              {"models_fingerprint", worker_.models.empty()
                                         ? std::string()
                                         : hexadecimal(fingerprint_of_file(worker_.models))}};
    if (ranks_ > 0) json["launcher"] = launcher_;
    return json;
  }

  static std::vector<std::string> ids_of(const std::vector<CaseId>& cases) {
    std::vector<std::string> ids;
    ids.reserve(cases.size());
    for (const CaseId& id : cases) ids.push_back(id.text());
    return ids;
  }

  void open_results() {
    if (earlier_) {
      check_resumable(writer_->path(), *earlier_, judged_.header);
      judged_.header = earlier_->header;
      take_earlier_outcomes();
      if (!earlier_->complete) writer_->go_on_after(*earlier_);
    } else if (const std::string path = new_results_path(); !path.empty()) {
      writer_.emplace(ResultsWriter::create(path, judged_.header));
    }
    if (writer_) judged_.results_path = writer_->path();
  }

  void take_earlier_outcomes() {
    std::set<std::string> mine;
    for (const CaseId& id : cases_) mine.insert(id.text());
    for (const Outcome& outcome : earlier_->outcomes) {
      const std::string id = outcome.id.text();
      if (!mine.contains(id)) {
        throw UsageError(
            fmt::format("{}: case {} is not part of this run; the file is damaged and "
                        "was left as it is, start a new run",
                        writer_->path(), id));
      }
      outcomes_.emplace(id, outcome);
    }
    if (earlier_->complete && outcomes_.size() != cases_.size()) {
      throw UsageError(
          fmt::format("{} has a footer but not all cases; the file is damaged and was "
                      "left as it is, start a new run",
                      writer_->path()));
    }
  }

  // A run of one case is somebody looking at it: it leaves a file only when asked to.
  std::string new_results_path() const {
    if (request_.results.no_results) return "";
    if (!request_.results.results.empty()) return request_.results.results;
    if (cases_.size() == 1) return "";
    std::string time = utc_now();
    std::erase(time, ':');
    std::string who = judged_.header.at("implementation").at("name").get<std::string>();
    for (char& c : who) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
    }
    std::string path = fmt::format("dropless-results/{}-{}", time, who.substr(0, 40));
    for (int more = 2; std::filesystem::exists(path + ".jsonl"); ++more) {
      path = fmt::format("dropless-results/{}-{}-{}", time, who.substr(0, 40), more);
    }
    return path + ".jsonl";
  }

  void run(Supervisor& supervisor) {
    std::vector<CaseId> left;
    for (const CaseId& id : cases_) {
      if (!outcomes_.contains(id.text())) left.push_back(id);
    }
    if (left.empty()) return;
    Progress progress(session_.err, session_.progress, cases_.size(), outcomes_.size());
    try {
      supervisor.run(left, [&](const Outcome& outcome) {
        outcomes_.emplace(outcome.id.text(), outcome);
        if (writer_) writer_->append(to_json(outcome));
        progress.note(outcome);
      });
    } catch (const Interrupted&) {
      session_.err << fmt::format("dropless: interrupted after {} of {} cases", outcomes_.size(),
                                  cases_.size());
      if (writer_) session_.err << "; continue with --resume " << writer_->path();
      session_.err << '\n';
      throw;
    }
  }

  void close() {
    for (const CaseId& id : cases_) {
      const auto found = outcomes_.find(id.text());
      Outcome outcome;
      if (found != outcomes_.end()) {
        outcome = found->second;
      } else {
        outcome.id = id;
        outcome.verdict.reason = "no result came back";
      }
      judged_.outcomes.push_back(std::move(outcome));
    }
    judged_.summary = summarize(judged_.outcomes);
    if (writer_ && !(earlier_ && earlier_->complete)) {
      writer_->finish(footer_of(judged_.summary, judged_.seconds));
    }
    if (!request_.results.junit.empty()) {
      write_file(request_.results.junit, junit_xml(judged_.header, judged_.outcomes, judged_.how));
    }
  }

  Session& session_;
  const Request& request_;
  std::optional<ResultsWriter> writer_;
  std::optional<Results> earlier_;
  WorkerOptions worker_;
  double timeout_ = default_timeout;
  int jobs_ = 1, ranks_ = 0;
  std::string launcher_;
  std::vector<CaseId> cases_;
  std::map<std::string, Outcome> outcomes_;
  Judged judged_;
};

}  // namespace

Judged execute(Session& session, const Request& request) {
  return Execution(session, request).judge();
}

std::string opening_text(const Judged& judged) {
  const Json& suite = judged.header.at("suite");
  const Json& one = judged.header.at("implementation");
  const std::string ranks =
      judged.how.ranks > 0 ? fmt::format(", {} ranks ({})", judged.how.ranks, judged.how.launcher)
                           : "";
  return fmt::format("dropless {} ({}), tier {}\n{} {} ({}): {} cases{}, {} worker{}, {:.1f} s\n",
                     suite.at("version").get<std::string>(), suite.at("commit").get<std::string>(),
                     judged.header.at("selection").at("tier").get<std::string>(),
                     one.at("name").get<std::string>(), one.at("version").get<std::string>(),
                     one.at("argument").get<std::string>(), judged.outcomes.size(), ranks,
                     judged.jobs, judged.jobs == 1 ? "" : "s", judged.seconds);
}

std::string failures_text(const Judged& judged) {
  std::string text;
  std::size_t shown = 0, hidden = 0;
  for (const Outcome& outcome : judged.outcomes) {
    if (acceptable(outcome.verdict.status)) continue;
    if (shown < failures_shown || judged.results_path.empty()) {
      text += failure_text(outcome, judged.how) + "\n";
      ++shown;
    } else {
      ++hidden;
    }
  }
  if (hidden > 0) text += fmt::format("{} more are in the results file\n", hidden);
  if (!judged.results_path.empty()) text += fmt::format("results: {}\n", judged.results_path);
  return text;
}

}  // namespace dropless::conformance
