// SPDX-License-Identifier: Apache-2.0
// dropless info: the suite, the machine, and what an implementation says about itself.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <ostream>

#include "conformance/adapters/describe.h"
#include "conformance/command_line/session.h"
#include "conformance/report/build_info.h"
#include "conformance/report/machine.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

// Nested objects as indented lines, lists on one line.
std::string lines_of(const Json& json, const std::string& indent) {
  std::string text;
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) {
      text += fmt::format("{}{}\n{}", indent, key, lines_of(value, indent + "  "));
    } else if (value.is_array()) {
      text += fmt::format("{}{:<20} {}\n", indent, key,
                          fmt::join(value.get<std::vector<std::string>>(), " "));
    } else {
      text += fmt::format("{}{:<20} {}\n", indent, key,
                          value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return text;
}

std::string not_offered(const Json& offers) {
  std::string text;
  for (const std::string& operation : all_operations()) {
    if (std::find(offers.begin(), offers.end(), operation) == offers.end()) text += operation + " ";
  }
  return text.empty() ? "" : fmt::format("  {:<20} {}\n", "does not offer", text);
}

}  // namespace

void add_info(CLI::App& app, Session& session) {
  auto options = std::make_shared<ImplementationOptions>();
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("info", "Describe the suite, the machine and an implementation");
  command
      ->add_option("-i,--implementation", options->implementation,
                   "cpu (default), cuda, reference, or a shared library")
      ->type_name("NAME|FILE");
  command->add_flag("--json", *json, "as one JSON object");
  command->callback([options, json, &session] {
    SupervisorOptions probe;
    probe.worker.implementation = options->implementation.value_or("cpu");
    probe.interrupt = &session.interrupt;
    const Json implementation = Supervisor(probe).probe();
    const Json all{{"suite", describe_suite()},
                   {"machine", describe_machine()},
                   {"implementation", implementation}};
    session.out << (*json ? all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                          : lines_of(all, "") + not_offered(implementation.at("offers")));
  });
}

}  // namespace dropless::conformance
