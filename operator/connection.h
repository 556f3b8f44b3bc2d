// Connection: the operator's connection to the API server: address, credentials, and a client for each kind of work, so
// that events and the Lease do not wait behind the reconcilers' requests.
//
// Threads: made by one; the clients may be used from all threads.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "operator/control/metrics.h"
#include "operator/kube/client.h"
#include "operator/kube/kube_config.h"
#include "operator/options.h"
#include "runner/base/environment.h"
#include "runner/base/log.h"
#include "runner/base/result.h"

namespace lockstep {

// Members are in the order in which they are made: a member that others use comes first and is destroyed last.
struct Connection {
  // `metrics` outlives the connection. kInvalid, kNotFound: what is wrong with the configuration.
  static Result<std::unique_ptr<Connection>> make(const OperatorOptions& options, const Environment& environment,
                                                  control::Metrics& metrics, const Logger& logger);

  std::stop_source stop;  // ends the waits of `client`, with kCancelled
  kube::ServerAccess access;
  std::string operator_namespace;
  std::shared_ptr<kube::HttpTransport> transport;
  std::unique_ptr<kube::Client> client;
  // Not ended by `stop`: these two send the last events and release the Lease after it.
  std::unique_ptr<kube::Client> event_client;
  std::unique_ptr<kube::Client> election_client;
};

}  // namespace lockstep
