// The cases of tests/operator/api/cases as whole TrainJobs (cases_base.yaml says what a case is), for the test of our
// own validation and, through trainjob_cases_tool, for the test against a real API server.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/base/json.h"

namespace lockstep::api {

struct Refusal {
  std::string field;
  std::string says;    // in both messages
  std::string ours;    // in ours
  std::string server;  // in the API server's, in place of the field
};

struct TrainJobCase {
  std::string name;
  Json job;
  std::optional<Json> stored;
  std::vector<Refusal> refused;
};

// Throws a std::runtime_error that names the file if a case is malformed.
std::vector<TrainJobCase> load_trainjob_cases(const std::string& folder_of_tests);
Json to_json(const TrainJobCase& one);

}  // namespace lockstep::api
