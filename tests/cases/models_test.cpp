// SPDX-License-Identifier: Apache-2.0
// Published models: all of them parse, and a malformed file is refused by name.
#include "conformance/cases/models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/cases/case_id.h"
#include "conformance/cases/embedded.h"

namespace dropless::conformance {
namespace {

using nlohmann::json;

json built_in() {
  return json::parse(embedded_models().front().text);
}

// The answer to a file with this content; the built-in models are put back.
std::string answer(const std::string& content) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("dropless_models_" + std::to_string(::getpid()) + ".json");
  const auto load = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    load_models(path.string());
  };
  std::string out = "accepted";
  try {
    load(content);
  } catch (const UsageError& error) {
    out = error.what();
    EXPECT_NE(out.find(path.string()), std::string::npos) << out;
  }
  load(std::string(embedded_models().front().text));
  std::filesystem::remove(path);
  return out;
}

std::string answer_to(const std::function<void(json&)>& change) {
  json list = json::array({built_in()[0]});
  change(list[0]);
  return answer(list.dump());
}

TEST(Models, AllAreThere) {
  EXPECT_EQ(models().size(), 34u);
  EXPECT_TRUE(std::is_sorted(models().begin(), models().end(),
                             [](const Model& a, const Model& b) { return a.name < b.name; }));
  for (const Model& model : models()) {
    EXPECT_EQ(find_model(model.name), &model);
    EXPECT_FALSE(model.source.empty()) << model.name;
  }
  EXPECT_EQ(find_model("gpt-5"), nullptr);
}

TEST(Models, DeepSeekV3) {
  const Model* model = find_model("deepseek-v3");
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->hidden, 7168);
  EXPECT_EQ(model->intermediate, 2048);
  EXPECT_EQ(model->shared_intermediate, 2048);
  EXPECT_EQ(model->experts, 256);
  EXPECT_EQ(model->route.top_k, 8);
  EXPECT_EQ(model->route.score_function, DROPLESS_SCORE_SIGMOID);
  EXPECT_EQ(model->route.renormalize, 1);
  EXPECT_EQ(model->route.scaling_factor, 2.5);
  EXPECT_EQ(model->route.num_groups, 8);
  EXPECT_EQ(model->route.kept_groups, 4);
  EXPECT_EQ(model->route.group_score, DROPLESS_GROUP_SCORE_TOP_SUM);
  EXPECT_EQ(model->route.renormalize_eps, 1e-20);
  EXPECT_TRUE(model->expert_bias);
  EXPECT_EQ(model->activation.kind, DROPLESS_SWIGLU);
}

TEST(Models, ChoicesThatStandOut) {
  EXPECT_EQ(find_model("gpt-oss-20b")->route.softmax_order, DROPLESS_SOFTMAX_AFTER_TOP_K);
  EXPECT_EQ(find_model("gpt-oss-20b")->activation.gate_up_layout, DROPLESS_GATE_UP_INTERLEAVED);
  EXPECT_EQ(find_model("gpt-oss-20b")->activation.alpha, 1.702);
  EXPECT_TRUE(find_model("gpt-oss-20b")->router_bias);
  EXPECT_EQ(find_model("llama-4-scout")->weight_placement, DROPLESS_WEIGHTS_INPUT);
  EXPECT_TRUE(find_model("gemma-4-26b-a4b")->expert_scale);
  EXPECT_FALSE(find_model("phi-3-5-moe")->top_k_routing);
  EXPECT_EQ(find_model("deepseek-v2")->route.group_score, DROPLESS_GROUP_SCORE_MAX);
  EXPECT_EQ(find_model("ernie-4-5-21b-a3b")->route.eps_form, DROPLESS_EPS_MAXIMUM);
  EXPECT_EQ(find_model("deepseek-v4-flash")->route.score_function, DROPLESS_SCORE_SQRT_SOFTPLUS);
  EXPECT_EQ(find_model("nemotron-3-nano-30b-a3b")->activation.kind, DROPLESS_RELU2);
}

TEST(Models, ScaleDownToMultiplesOf32) {
  const Model small = scaled(*find_model("gpt-oss-20b"), 16);  // 2880 / 16 = 180
  EXPECT_EQ(small.hidden, 192);
  EXPECT_EQ(small.intermediate, 192);
  EXPECT_EQ(small.shared_intermediate, 0);
  EXPECT_EQ(small.experts, 32);
  EXPECT_EQ(scaled(*find_model("deepseek-v3"), 1).hidden, 7168);
}

TEST(ModelFiles, ReplaceTheBuiltInOnes) {
  EXPECT_EQ(answer_to([](json&) {}), "accepted");
  EXPECT_EQ(models().size(), 34u);  // put back
}

TEST(ModelFiles, ErrorsNameModelAndField) {
  const auto says = [](const std::string& got, std::string_view part) {
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  const std::string name = built_in()[0]["name"];
  says(answer_to([](json& m) { m.erase("top_k"); }),
       "model '" + name + "': field 'top_k' is missing");
  says(answer_to([](json& m) { m["top_k"] = "four"; }), "field 'top_k' must be an integer");
  says(answer_to([](json& m) { m["top_k"] = 4.5; }), "field 'top_k' must be an integer");
  says(answer_to([](json& m) { m["top_k"] = 17; }), "'top_k' is 17, must be in 1..16");
  says(answer_to([](json& m) { m["score_function"] = "relu"; }),
       "'score_function' is 'relu', must be one of sigmoid softmax sqrtsoftplus");
  says(answer_to([](json& m) { m["renormalize"] = 1; }), "'renormalize' must be true or false");
  says(answer_to([](json& m) { m["routed_scaling_factor"] = -1; }), "'routed_scaling_factor'");
  says(answer_to([](json& m) { m["num_groups"] = 3; }), "does not divide num_experts");
  says(answer_to([](json& m) { m["num_groups"] = 8; }), "keeps fewer than top_k");
  says(answer_to([](json& m) { m["name"] = "Bad Name"; }), "field 'name'");
  says(answer_to([](json& m) { m["activation"] = "swiglu_clamped"; }), "'activation_limit'");
  says(answer_to([](json& m) { m["weight_placement"] = nullptr; }), "'weight_placement'");
}

TEST(ModelFiles, ErrorsOfTheWholeFile) {
  EXPECT_NE(answer("[{]").find("not JSON"), std::string::npos);
  EXPECT_NE(answer("{}").find("array"), std::string::npos);
  EXPECT_NE(answer("[]").find("non-empty"), std::string::npos);
  EXPECT_NE(answer("[1]").find("model 0 is not an object"), std::string::npos);
  const json one = built_in()[0];
  EXPECT_NE(answer(json::array({one, one}).dump()).find("occurs twice"), std::string::npos);
  EXPECT_THROW(load_models("/no/such/models.json"), UsageError);
}

}  // namespace
}  // namespace dropless::conformance
