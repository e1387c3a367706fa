// SPDX-License-Identifier: Apache-2.0
// A library that cannot be judged is refused in one sentence, and the tool survives all of them.
#include <filesystem>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {
namespace {

struct Refused {
  const char* plugin;
  std::vector<std::string> named;
};

class Refusals : public testing::TestWithParam<Refused> {
 protected:
  Tool tool;
};

// The same answers on a machine with GPUs.
void hide_gpus(Tool& tool) {
  tool.set("CUDA_VISIBLE_DEVICES", "");
}

TEST_P(Refusals, SayWhatAndWhatToDo) {
  hide_gpus(tool);
  std::vector<std::string> parts = GetParam().named;
  parts.push_back(std::string(GetParam().plugin) + ".so");
  for (const char* command : {"run", "info"}) {
    EXPECT_TRUE(is_usage_error(tool.run({command, "-i", plugin(GetParam().plugin)}), parts));
  }
  EXPECT_FALSE(std::filesystem::exists(tool.path("dropless-results")));
}

INSTANTIATE_TEST_SUITE_P(
    Runner, Refusals,
    testing::Values(Refused{"tiny_struct", {"struct_size 8", "sizeof(dropless_implementation)"}},
                    Refused{"wrong_version", {"version 2.0", "judges 1.x", "rebuild"}},
                    Refused{"null_table", {"returned null", "rebuild"}},
                    Refused{"null_profile", {"profile is null"}},
                    Refused{"bad_profile_value",
                            {"profile.scale_rule is 9", "MXFP8-2", "0 (rceil)"}},
                    Refused{"declared_without_order", {"tie_rule", "tie_rank"}},
                    Refused{"unnamed", {"no name"}},
                    Refused{"cuda_memory", {"memory_space 1", "host"}},
                    Refused{"crash_in_constructor", {"SIGABRT", "while it was being loaded"}},
                    Refused{"exit_in_constructor", {"exit(0)", "while it was being loaded"}},
                    Refused{"missing_symbol", {"lacks the symbol dropless_get_implementation"}},
                    Refused{"undefined_symbol", {"cannot be loaded", "nobody_defines_this"}}),
    [](const auto& row) { return std::string(row.param.plugin); });

class Loading : public testing::Test {
 protected:
  Tool tool;
};

TEST_F(Loading, ALibraryThatHangsIsGivenUp) {
  const Ran ran = tool.run({"run", "--timeout", "1", "-i", plugin("hang_in_entry")});
  EXPECT_TRUE(is_usage_error(ran, {"hang_in_entry.so", "did not finish loading"}));
}

TEST_F(Loading, AnOlderShorterTableOffersLess) {
  const Ran ran = tool.run({"run", "mxfp8.quantize", "grouped_gemm.wgrad", "--tier", "smoke",
                            "--results", "r.jsonl", "-i", plugin("older_struct")});
  EXPECT_EQ(ran.code, 0) << ran;
  EXPECT_GE(statuses(tool.path("r.jsonl"))["pass"], 5) << ran;
  const auto missing = first_with(tool.path("r.jsonl"), "not_supported");
  EXPECT_EQ(missing.at("stage"), "grouped_gemm") << missing.dump(2);
}

TEST_F(Loading, ALaterMinorVersionIsFine) {
  EXPECT_EQ(tool.run({"run", "permutation.plan", "-i", plugin("newer_minor")}).code, 0);
}

TEST_F(Loading, FilesThatAreNoLibrary) {
  const auto info = [&](const std::string& name) { return tool.run({"info", "-i", name}); };
  EXPECT_TRUE(is_usage_error(info("nowhere.so"), {"'nowhere.so'", "cpu, reference", "give"}));
  EXPECT_TRUE(is_usage_error(info(tool.path("")), {"is not a file"}));
  write(tool.path("text.so"), "not a library\n");
  EXPECT_TRUE(is_usage_error(info("./text.so"), {"./text.so is not a shared library", "-shared"}));
  EXPECT_TRUE(is_usage_error(info("text.so"), {"'text.so' has no slash", "write ./text.so"}));
  write(tool.path("cut.so"), contents(plugin("example")).substr(0, 5000));
  EXPECT_TRUE(is_usage_error(info("./cut.so"), {"./cut.so"}));
  write(tool.path("empty.so"), "");
  EXPECT_TRUE(is_usage_error(info("./empty.so"), {"./empty.so is not a shared library"}));
}

TEST_F(Loading, WithoutAGpuTheCudaImplementationSaysWhy) {
  hide_gpus(tool);
  const Ran ran = tool.run({"run", "permutation.plan", "--tier", "smoke", "-i", "cuda"});
  EXPECT_EQ(ran.code, 2) << ran;
  EXPECT_TRUE(ran.err.find("NVIDIA") != std::string::npos ||
              ran.err.find("built without CUDA") != std::string::npos)
      << ran;
}

TEST_F(Loading, InfoTellsWhatTheLibraryDeclares) {
  const Ran ran = tool.run({"info", "--json", "-i", plugin("example")});
  ASSERT_EQ(ran.code, 0) << ran;
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json.at("implementation").at("name"), "plain C example");
  EXPECT_EQ(json.at("implementation").at("profile").at("scale_rule"), "rceil");
  EXPECT_EQ(json.at("implementation").at("offers").size(), 6u);
  EXPECT_FALSE(json.at("suite").at("version").get<std::string>().empty());
  EXPECT_GE(json.at("machine").at("usable_cores"), 1);
}

}  // namespace
}  // namespace dropless::runner_tests
