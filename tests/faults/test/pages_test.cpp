// SPDX-License-Identifier: Apache-2.0
// Results on disk, Markdown tables, and pages with markers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "conformance/command_line/fault_pages.h"

namespace dropless::conformance {
namespace {

namespace files = std::filesystem;

class Pages : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = files::temp_directory_path() / ("dropless_pages_" + std::to_string(::getpid()));
    files::create_directories(folder_);
    register_fault_entries({entry("routing.one"), entry("routing.two"), entry("mxfp8.one"),
                            elsewhere("exchange.one", Visibility::ranks)});
  }
  void TearDown() override { files::remove_all(folder_); }

  static FaultEntry entry(std::string name) {
    FaultEntry fault;
    fault.name = std::move(name), fault.provenance = "project 1", fault.symptom = "s";
    fault.trigger = "t", fault.clauses = {"ROUTING-3a"};
    return fault;
  }
  static FaultEntry elsewhere(std::string name, Visibility visibility) {
    FaultEntry fault = entry(std::move(name));
    fault.visibility = visibility, fault.reason = "two of them";
    return fault;
  }
  static Hunt killed(const FaultEntry& fault, Tier tier, std::set<std::string> clauses) {
    Hunt hunt;
    hunt.fault = fault, hunt.tier = tier, hunt.clause = *clauses.begin();
    hunt.clauses = std::move(clauses), hunt.cases = 3, hunt.seconds = 0.5;
    hunt.killer.emplace();
    hunt.killer->id = parse_case_id("routing.any:seed=1");
    return hunt;
  }
  // Two killed, of which one by a single clause; one survives.
  static FaultResults results(Depth depth = Depth::two_clauses) {
    FaultResults all;
    all.faults = fault_entries(), all.tiers = {Tier::smoke, Tier::standard};
    all.depth = depth, all.commit = "abc";
    all.hunts = {killed(all.faults[0], Tier::smoke, {"ROUTING-3a"}),
                 killed(all.faults[1], Tier::standard, {"ROUTING-3a", "ROUTING-2a"}), Hunt{}};
    all.hunts[2].fault = all.faults[2];
    return all;
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  std::string text_of(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name)).rdbuf();
    return text.str();
  }

 private:
  files::path folder_;
};

TEST_F(Pages, TheScoreCountsTiersTogether) {
  const std::string text = score_markdown(results());
  EXPECT_NE(text.find("| routing | 2 | 1 (50 %) | 2 (100 %) | 0 | 0 | 0 |\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("| exchange | 0 | - | - | 0 | 0 | 1 |\n"), std::string::npos) << text;
  EXPECT_NE(text.find("| all | 3 | 1 (33 %) | 2 (67 %) | 1 | 0 | 1 |\n"), std::string::npos)
      << text;
}

TEST_F(Pages, AClauseIsNeededWhenOnlyItSeesAFault) {
  const std::string text = clauses_markdown(results());
  EXPECT_NE(text.find("| ROUTING-3a | A right selection | 1 | `routing.one` |\n"),
            std::string::npos);
  const auto unexplained = unexplained_clauses(results());
  EXPECT_EQ(std::count(unexplained.begin(), unexplained.end(), "ROUTING-3a"), 0);
  EXPECT_EQ(std::count(unexplained.begin(), unexplained.end(), "ROUTING-2a"), 1);
  FaultResults other = results();
  other.hunts[1].fault.clauses = {"ROUTING-2a"};  // the best name for what both clauses see
  EXPECT_NE(
      clauses_markdown(other).find("| 0 | it is the name of what went wrong in `routing.two` |\n"),
      std::string::npos);
  const auto fewer = unexplained_clauses(other);
  EXPECT_EQ(std::count(fewer.begin(), fewer.end(), "ROUTING-2a"), 0);
  EXPECT_EQ(std::count(unexplained.begin(), unexplained.end(), "ROUTING-1d"), 1);
  EXPECT_THROW(clauses_markdown(results(Depth::first_kill)), UsageError);
  EXPECT_THROW(score_markdown(results(Depth::alone)), UsageError);
}

TEST_F(Pages, AreWrittenBetweenTheirMarkersOnly) {
  write("page.md", "before\n<!-- faults: score -->\nold\n<!-- end of faults -->\nafter\n");
  EXPECT_EQ(tables_on(path("page.md")), std::vector<std::string>{"score"});
  update_page(path("page.md"), results());
  const std::string once = text_of("page.md");
  EXPECT_EQ(once, "before\n<!-- faults: score -->\n" + score_markdown(results()) +
                      "<!-- end of faults -->\nafter\n");
  update_page(path("page.md"), results());
  EXPECT_EQ(text_of("page.md"), once);
}

TEST_F(Pages, WithoutGoodMarkersAreRefusedAndKept) {
  for (const char* text :
       {"no marker\n", "<!-- faults: score -->\nopen\n", "<!-- faults: weather -->\n",
        "<!-- end of faults -->\n", "<!-- faults: score -->\n<!-- faults: score -->\n"}) {
    write("page.md", text);
    EXPECT_THROW(update_page(path("page.md"), results()), UsageError) << text;
    EXPECT_EQ(text_of("page.md"), text);
  }
  EXPECT_THROW(tables_on(path("missing.md")), UsageError);
}

TEST_F(Pages, ResultsComeBackFromFiles) {
  write("all.json", to_json(results()).dump());
  EXPECT_EQ(to_json(read_fault_results({path("all.json")})), to_json(results()));
}

TEST_F(Pages, ResultsOfPartsArePutTogether) {
  const FaultResults all = results();
  FaultResults first = all, second = all;
  first.faults = {all.faults[2], all.faults[3]}, first.hunts = {all.hunts[2]};
  second.faults = {all.faults[0], all.faults[1]}, second.hunts = {all.hunts[0], all.hunts[1]};
  write("first.json", to_json(first).dump());
  write("second.json", to_json(second).dump());
  EXPECT_EQ(to_json(read_fault_results({path("first.json"), path("second.json")})), to_json(all));
  EXPECT_THROW(read_fault_results({path("first.json"), path("first.json")}), UsageError);
  second.commit = "def";
  write("second.json", to_json(second).dump());
  EXPECT_THROW(read_fault_results({path("first.json"), path("second.json")}), UsageError);
  write("second.json", "{\"schema\": 2");
  EXPECT_THROW(read_fault_results({path("second.json")}), UsageError);
}

}  // namespace
}  // namespace dropless::conformance
