// SPDX-License-Identifier: Apache-2.0
// Published models: read from JSON, checked field by field.
#include "conformance/cases/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/cases/case_id.h"
#include "conformance/cases/embedded.h"

namespace dropless::conformance {
namespace {

using nlohmann::json;

using Words = std::map<std::string, int>;

// One JSON object; every complaint names file, model and field.
class Fields {
 public:
  Fields(std::string where, const json& object) : where_(std::move(where)), object_(object) {}

  [[noreturn]] void complain(std::string_view field, std::string_view problem) const {
    throw UsageError(fmt::format("{}: field '{}' {}", where_, field, problem));
  }
  [[nodiscard]] bool is_set(const char* field) const {
    return object_.contains(field) && !object_[field].is_null();
  }
  [[nodiscard]] const json& get(const char* field) const {
    if (!object_.contains(field)) complain(field, "is missing");
    return object_[field];
  }
  [[nodiscard]] std::string text(const char* field) const {
    if (!get(field).is_string()) complain(field, "must be a string");
    return get(field).get<std::string>();
  }
  [[nodiscard]] bool flag(const char* field) const {
    if (!get(field).is_boolean()) complain(field, "must be true or false");
    return get(field).get<bool>();
  }
  [[nodiscard]] Index integer(const char* field, Index least, Index most) const {
    const json& value = get(field);
    if (!value.is_number_integer()) complain(field, "must be an integer");
    const auto number = value.get<Index>();
    if (number < least || number > most) {
      complain(field, fmt::format("is {}, must be in {}..{}", number, least, most));
    }
    return number;
  }
  [[nodiscard]] double number(const char* field, double least, double most) const {
    const json& value = get(field);
    if (!value.is_number()) complain(field, "must be a number");
    const auto number = value.get<double>();
    if (!(number >= least && number <= most)) {
      complain(field, fmt::format("is {}, must be in {}..{}", number, least, most));
    }
    return number;
  }
  [[nodiscard]] int word(const char* field, const Words& words) const {
    const auto found = words.find(text(field));
    if (found != words.end()) return found->second;
    std::string list;
    for (const auto& [known, value] : words) list += " " + known;
    complain(field, fmt::format("is '{}', must be one of{}", text(field), list));
  }
  // Absent or null means `otherwise`.
  [[nodiscard]] int word_or(const char* field, const Words& words, int otherwise) const {
    return is_set(field) ? word(field, words) : otherwise;
  }
  [[nodiscard]] double number_or(const char* field, double least, double most,
                                 double otherwise) const {
    return is_set(field) ? number(field, least, most) : otherwise;
  }

 private:
  std::string where_;
  const json& object_;
};

constexpr Index largest_size = Index{1} << 24;
constexpr double largest_number = 1e6;

enum Variant { plain, hash_prefix, per_expert_scale, sparsemixer };

dropless_route_settings read_route(const Fields& fields) {
  dropless_route_settings route{};
  route.struct_size = sizeof route;
  route.struct_version = DROPLESS_STRUCT_VERSION;
  route.num_experts = fields.integer("num_experts", 1, 65536);
  route.top_k = fields.integer("top_k", 1, route.num_experts);
  route.score_function =
      fields.word("score_function", {{"softmax", DROPLESS_SCORE_SOFTMAX},
                                     {"sigmoid", DROPLESS_SCORE_SIGMOID},
                                     {"sqrtsoftplus", DROPLESS_SCORE_SQRT_SOFTPLUS}});
  route.softmax_order = fields.word_or("softmax_order",
                                       {{"before_topk", DROPLESS_SOFTMAX_BEFORE_TOP_K},
                                        {"after_topk", DROPLESS_SOFTMAX_AFTER_TOP_K}},
                                       DROPLESS_SOFTMAX_BEFORE_TOP_K);
  route.renormalize = fields.flag("renormalize") ? 1 : 0;
  route.renormalize_single = 0;  // public code renormalises for K > 1 only
  route.renormalize_eps = fields.number_or("renormalize_eps", 0, 1, 1e-20);
  route.eps_form = fields.word_or(
      "renormalize_eps_form", {{"added", DROPLESS_EPS_ADDED}, {"maximum", DROPLESS_EPS_MAXIMUM}},
      DROPLESS_EPS_ADDED);
  route.scaling_factor = fields.number("routed_scaling_factor", 0, largest_number);
  route.num_groups = fields.integer("num_groups", 1, route.num_experts);
  route.kept_groups = fields.integer("topk_groups", 1, route.num_groups);
  route.group_score = fields.word_or(
      "group_score",
      {{"top2_sum", DROPLESS_GROUP_SCORE_TOP_SUM}, {"max", DROPLESS_GROUP_SCORE_MAX}},
      DROPLESS_GROUP_SCORE_TOP_SUM);
  if (route.num_experts % route.num_groups != 0) {
    fields.complain("num_groups", "does not divide num_experts");
  }
  if (route.top_k > route.num_experts / route.num_groups * route.kept_groups) {
    fields.complain("topk_groups", "keeps fewer than top_k experts");
  }
  return route;
}

dropless_activation_settings read_activation(const Fields& fields) {
  dropless_activation_settings activation{};
  activation.struct_size = sizeof activation;
  activation.struct_version = DROPLESS_STRUCT_VERSION;
  activation.kind = fields.word("activation", {{"swiglu", DROPLESS_SWIGLU},
                                               {"swiglu_clamped", DROPLESS_SWIGLU_CLAMPED},
                                               {"geglu", DROPLESS_GEGLU_TANH},
                                               {"relu2", DROPLESS_RELU2}});
  activation.gate_up_layout = fields.word_or("gate_up_layout",
                                             {{"concatenated", DROPLESS_GATE_UP_CONCATENATED},
                                              {"interleaved", DROPLESS_GATE_UP_INTERLEAVED}},
                                             DROPLESS_GATE_UP_CONCATENATED);
  if (activation.kind == DROPLESS_SWIGLU_CLAMPED) {
    activation.limit = fields.number("activation_limit", 0, largest_number);
    activation.alpha = fields.number("activation_alpha", 0, largest_number);
    activation.offset = fields.number("activation_linear_offset", 0, largest_number);
  }
  return activation;
}

Model read_model(const std::string& file, std::size_t position, const json& object) {
  const std::string place = fmt::format("{}: model {}", file, position);
  if (!object.is_object()) throw UsageError(place + " is not an object");
  const std::string name = Fields(place, object).text("name");
  const Fields fields(fmt::format("{}: model '{}'", file, name), object);
  const bool fits = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
  if (!fits) fields.complain("name", "may only hold a-z, 0-9, '.', '_' and '-'");

  Model model;
  model.name = name;
  model.title = fields.text("title");
  model.source = fields.text("source");
  model.notes = fields.text("notes");
  model.hidden = fields.integer("hidden_size", 1, largest_size);
  model.intermediate = fields.integer("moe_intermediate_size", 1, largest_size);
  if (fields.is_set("shared_intermediate_size")) {
    model.shared_intermediate = fields.integer("shared_intermediate_size", 0, largest_size);
  }
  model.shared_gate = fields.flag("shared_expert_gate");
  model.expert_bias = fields.flag("expert_bias");
  model.router_bias = fields.flag("router_logit_bias");
  model.ffn_bias = fields.flag("expert_ffn_bias");
  const int variant = fields.word("routing_variant", {{"topk", plain},
                                                      {"topk_after_hash_prefix", hash_prefix},
                                                      {"topk_per_expert_scale", per_expert_scale},
                                                      {"sparsemixer", sparsemixer}});
  model.expert_scale = variant == per_expert_scale;
  model.top_k_routing = variant != sparsemixer;
  model.weight_placement = fields.word("weight_placement", {{"late", DROPLESS_WEIGHTS_LATE},
                                                            {"early", DROPLESS_WEIGHTS_EARLY},
                                                            {"input", DROPLESS_WEIGHTS_INPUT}});
  model.balance_coeff = fields.number_or("aux_loss_coef", 0, largest_number, 0);
  model.z_coeff = fields.number_or("z_loss_coef", 0, largest_number, 0);
  model.route = read_route(fields);
  model.experts = model.route.num_experts;
  model.top_k = model.route.top_k;
  model.activation = read_activation(fields);
  return model;
}

std::vector<Model> parse(const std::string& file, std::string_view text) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::exception& error) {  // out_of_range as well: a number like 1e999
    throw UsageError(fmt::format("{}: not JSON: {}", file, error.what()));
  }
  if (!document.is_array() || document.empty()) {
    throw UsageError(file + ": must be a non-empty array of models");
  }
  std::vector<Model> out;
  for (std::size_t i = 0; i < document.size(); ++i) {
    out.push_back(read_model(file, i, document[i]));
  }
  std::sort(out.begin(), out.end(), [](const Model& a, const Model& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < out.size(); ++i) {
    if (out[i].name == out[i - 1].name) {
      throw UsageError(fmt::format("{}: model '{}' occurs twice", file, out[i].name));
    }
  }
  return out;
}

std::vector<Model>& list() {
  static std::vector<Model> all = [] {
    const EmbeddedFile& file = embedded_models().front();
    return parse(std::string(file.name), file.text);
  }();
  return all;
}

Index scaled_size(Index size, Index divisor) {
  const Index divided = (size + divisor - 1) / divisor;
  return (divided + 31) / 32 * 32;
}

}  // namespace

const std::vector<Model>& models() {
  return list();
}

void load_models(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw UsageError(path + ": cannot be read");
  std::ostringstream text;
  text << stream.rdbuf();
  list() = parse(path, text.str());
}

const Model* find_model(std::string_view name) {
  const auto found = std::find_if(list().begin(), list().end(),
                                  [&](const Model& model) { return model.name == name; });
  return found == list().end() ? nullptr : &*found;
}

Model scaled(const Model& model, Index divisor) {
  Model out = model;
  out.hidden = scaled_size(model.hidden, divisor);
  out.intermediate = scaled_size(model.intermediate, divisor);
  if (model.shared_intermediate > 0) {
    out.shared_intermediate = scaled_size(model.shared_intermediate, divisor);
  }
  return out;
}

}  // namespace dropless::conformance
