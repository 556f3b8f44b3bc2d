// Prints the cases of tests/operator/api/cases, whole, as one JSON list, for tests/cluster/test_crd.py.
// trainjob_cases FOLDER_OF_TESTS
#include <cstdio>
#include <exception>

#include "tests/operator/api/trainjob_cases.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  if (argc != 2) {
    std::fprintf(stderr, "usage: trainjob_cases FOLDER (tests/operator/api)\n");
    return 2;
  }
  try {
    Json list = Json::array();
    for (const api::TrainJobCase& one : api::load_trainjob_cases(argv[1])) list.push_back(api::to_json(one));
    std::printf("%s\n", dump_line(list).c_str());
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "trainjob_cases: %s\n", e.what());
    return 1;
  }
}
