#include "operator/train/desired_network_policy.h"

#include "operator/kube/resource.h"
#include "operator/train/object_names.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

// The policy sees the port of the DNS server's pod, not that of its Service: OpenShift's listens on the second.
constexpr int kDnsPort = 53;
constexpr int kDnsPortOfOpenShift = 5353;

Json ports(std::initializer_list<std::pair<const char*, int>> list) {
  Json out = Json::array();
  for (const auto& [protocol, port] : list) out.push_back({{"protocol", protocol}, {"port", port}});
  return out;
}

Json of_namespace(const std::string& name) { return {{"matchLabels", {{"kubernetes.io/metadata.name", name}}}}; }

}  // namespace

Json desired_network_policy(const api::TrainJob& job, const Settings& settings) {
  const Json job_pods = {{"podSelector", {{"matchLabels", {{std::string(kJobLabel), job.meta.name}}}}}};
  const Json operator_pods = {{"namespaceSelector", of_namespace(settings.operator_namespace)},
                              {"podSelector", {{"matchLabels", settings.operator_labels}}}};
  const Json prometheus = {{"namespaceSelector", of_namespace(settings.prometheus_namespace)}};
  const Json ingress = Json::array({{{"from", Json::array({job_pods})}},
                                    {{"from", Json::array({operator_pods, prometheus})},
                                     {"ports", ports({{"TCP", job.spec.trainer.status_port}})}}});
  const Json egress = Json::array(
      {{{"to", Json::array({job_pods})}},
       {{"ports",
         ports({{"UDP", kDnsPort}, {"TCP", kDnsPort}, {"UDP", kDnsPortOfOpenShift}, {"TCP", kDnsPortOfOpenShift}})}}});
  return {{"apiVersion", kube::kNetworkPolicies.api_version()},
          {"kind", kube::kNetworkPolicies.kind},
          {"metadata", owned_metadata(job.meta, job.meta.name)},
          {"spec",
           {{"podSelector", job_pods["podSelector"]},
            {"policyTypes", Json::array({"Ingress", "Egress"})},
            {"ingress", ingress},
            {"egress", egress}}}};
}

bool network_policy_differs(const Json& policy, const Json& desired) {
  const Json* const is = field(policy, {"spec"});
  return is == nullptr || *is != *field(desired, {"spec"});
}

}  // namespace lockstep::train
