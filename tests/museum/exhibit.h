// SPDX-License-Identifier: Apache-2.0
// One planted fault in the eyes of the common checks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace dropless::museum {

// What the checks say of some cases. A check sees a fault when it rejects a tensor of the faulty
// implementation and accepts that of the correct one, in the same comparison of the same case.
struct Sight {
  bool visible = false;    // some compared tensor differs from the correct implementation's
  bool ours = false;       // the verdict of a case is failed
  std::vector<bool> sees;  // by check
};

struct Exhibit {
  std::string fault;
  Sight same_data;              // the cases that our verdicts fail, five at most
  Sight typical;                // typical cases of its stage
  std::string clause, case_id;  // of the first failed verdict
  std::string trouble;          // why there is no result
};

// In this process, which a fault may crash or keep busy.
Exhibit examine(const std::string& fault);

nlohmann::json to_json(const Exhibit& exhibit);
Exhibit exhibit_from(const nlohmann::json& json);

}  // namespace dropless::museum
