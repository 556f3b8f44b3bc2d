// CrdCheck: is the cluster's CRD the one that this operator needs?
//
// An API server drops the fields of a status that its CRD does not have: what a policy has decided would be forgotten,
// and done again; and it refuses a status with words or numbers that its CRD does not allow. So while the cluster's CRD
// is older than the operator, the operator waits and says what is missing. Threads: `wait` on one, `trouble` from all.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "operator/kube/client.h"
#include "runner/base/log.h"
#include "runner/base/mutex.h"

namespace lockstep {

class CrdCheck {
 public:
  // `client` outlives the check.
  CrdCheck(kube::Client& client, Logger logger) : client_(client), logger_(std::move(logger)) {}

  // Blocks until the CRD allows all that ours does, the server turns out to publish no schema, or a stop is requested
  // on `ended`.
  void wait(const std::stop_token& ended);
  // What the newest check found wrong with the CRD, or that it has not been checked yet; nullopt: nothing.
  [[nodiscard]] std::optional<std::string> trouble() const;

 private:
  kube::Client& client_;
  const Logger logger_;
  mutable Mutex mutex_;
  std::string trouble_ GUARDED_BY(mutex_) = "the CRD has not been checked yet";  // empty: none
};

}  // namespace lockstep
