// Any bytes as a TrainJob's file: reading, defaults and validation never crash; what is valid can be read, stays valid
// with its defaults and keeps its meaning on the way to JSON and back.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "operator/api/defaults.h"
#include "operator/api/trainjob.h"
#include "operator/api/validate.h"
#include "operator/api/yaml.h"

namespace {

using namespace lockstep;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_valid(const Json& written) {
  Json stored = written;
  api::apply_trainjob_defaults(stored);
  require(api::validate(stored).empty());
  require(api::validate_update(written, stored).empty());

  const auto job = api::trainjob_from_json(stored);
  require(job.ok());
  Json again = stored;
  again["spec"] = api::to_json(job->spec);
  again["status"] = api::to_json(job->status);
  const auto back = api::trainjob_from_json(again);
  require(back.ok());
  // As text: what is preserved unknown may hold a NaN, which equals nothing.
  require(dump_line(api::to_json(back->spec)) == dump_line(again["spec"]));
  require(dump_line(api::to_json(back->status)) == dump_line(again["status"]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto documents = api::parse_yaml_documents({reinterpret_cast<const char*>(data), size}, "input");
  if (!documents.ok()) return 0;
  for (const OrderedJson& document : *documents) {
    const Json written(document);
    static_cast<void>(api::trainjob_from_json(written));  // also what no schema has seen
    if (api::validate(written).empty()) check_valid(written);
  }
  return 0;
}
