#include "operator/api/crd.h"

#include "operator/api/yaml.h"

namespace lockstep::api {
namespace {

// The YAML text is compiled into this program. If it cannot be used, the build is faulty; crd_test finds that.
Schema schema_of_crd() {
  const auto crd = parse_yaml(crd_yaml(), "manifests/base/crd.yaml");
  LOCKSTEP_CHECK(crd.ok(), crd.ok() ? "" : crd.error().message.c_str());
  auto schema = Schema::parse(Json((*crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]));
  LOCKSTEP_CHECK(schema.ok(), schema.ok() ? "" : schema.error().message.c_str());
  return *std::move(schema);
}

}  // namespace

const Schema& trainjob_schema() {
  static const Schema schema = schema_of_crd();
  return schema;
}

}  // namespace lockstep::api
