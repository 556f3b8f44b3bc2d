#include "operator/connection.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "operator/access.h"
#include "operator/kube/cpprest_transport.h"

namespace lockstep {
namespace {

constexpr const char* kOperatorNamespace = "lockstep-system";
// How long a request for the Lease is retried. Shorter than the retry period, at which the elector asks again anyway.
constexpr std::chrono::milliseconds kElectionRetryFor{1'000};
constexpr std::chrono::milliseconds kElectionTimeout{5'000};
// Events are informative only: a flood of them must not delay the reconcilers' requests.
constexpr double kEventsPerSecond = 20.0;
constexpr int kEventsBurst = 100;

// "10.96.0.1:443" of "https://10.96.0.1:443/prefix".
std::string host_of(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

}  // namespace

Result<std::unique_ptr<Connection>> Connection::make(const OperatorOptions& options, const Environment& environment,
                                                     control::Metrics& metrics, const Logger& logger) {
  auto made = std::make_unique<Connection>();
  TRY_ASSIGN(made->access, find_access(options.kubeconfig, options.context, environment));
  const kube::ServerAccess& access = made->access;
  made->operator_namespace = !options.operator_namespace.empty() ? options.operator_namespace
                             : !access.ns.empty()                ? access.ns
                                                                 : kOperatorNamespace;
  for (const std::string& warning : access.warnings) logger.warning(warning);
  // cpprestsdk reads all of the system's certificates for every connection before it asks for ours, which replace
  // them.
  if (!access.tls.authority.empty()) ::setenv("SSL_CERT_FILE", "/dev/null", 1);
  TRY_ASSIGN(made->transport, kube::make_cpprest_transport({.url = access.url, .tls = access.tls}));
  kube::ClientOptions for_work = client_options(access, "lockstep-operator");
  for_work.requests_per_second = options.qps;
  for_work.burst = options.burst;
  for_work.on_request = metrics.request_counter(host_of(access.url));
  kube::ClientOptions for_events = for_work;
  for_events.requests_per_second = kEventsPerSecond;
  for_events.burst = kEventsBurst;
  kube::ClientOptions for_election = for_work;
  for_election.retry_for = kElectionRetryFor;
  for_election.request_timeout = kElectionTimeout;
  for_work.stop = made->stop.get_token();
  made->client = std::make_unique<kube::Client>(made->transport, std::move(for_work));
  made->event_client = std::make_unique<kube::Client>(made->transport, std::move(for_events));
  made->election_client = std::make_unique<kube::Client>(made->transport, std::move(for_election));
  return made;
}

}  // namespace lockstep
