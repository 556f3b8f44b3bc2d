// Any bytes as a kubeconfig: a refusal that names the file, or an access that can be used; and as YAML: what was
// understood survives the way through text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "operator/api/yaml.h"
#include "operator/kube/kube_config.h"
#include "operator/kube/server_url.h"
#include "runner/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);

  const Result<std::vector<OrderedJson>> documents = api::parse_yaml_documents(text, "fuzz.yaml");
  if (documents.ok()) {
    for (const OrderedJson& value : *documents) {
      const std::string yaml = api::to_yaml(value);
      const Result<OrderedJson> back = api::parse_yaml(yaml, "back.yaml");
      LOCKSTEP_CHECK(back.ok() && back->dump() == value.dump(), yaml.c_str());
    }
  } else {
    LOCKSTEP_CHECK(documents.error().message.starts_with("fuzz.yaml:"), "a refusal names the source");
  }

  const Result<kube::KubeConfigFile> file = kube::parse_kube_config(text, "/fuzz/config");
  if (!file.ok()) {
    LOCKSTEP_CHECK(file.error().message.starts_with("/fuzz/config"), "a refusal names the file");
    return 0;
  }
  const Result<kube::ServerAccess> access = kube::select_access({*file}, "");
  if (!access.ok()) {
    LOCKSTEP_CHECK(!access.error().message.empty(), "a refusal says why");
    return 0;
  }
  LOCKSTEP_CHECK(kube::parse_server_url(access->url).ok(), "an access has an address");
  LOCKSTEP_CHECK(access->token.find_first_of(" \r\n") == std::string::npos, "a token fits into a header");
  LOCKSTEP_CHECK(access->tls.client_certificate.empty() == access->tls.client_key.empty(), "a pair, or none");
  return 0;
}
