#include "operator/crd_check.h"

#include <chrono>
#include <utility>
#include <vector>

#include "operator/api/crd.h"
#include "operator/api/schema_gap.h"
#include "operator/api/trainjob.h"
#include "runner/base/build_info.h"
#include "runner/base/mutex.h"
#include "runner/base/plural.h"

namespace lockstep {
namespace {

// Interval at which the cluster's CRD is read while it is not the one that this operator needs.
constexpr std::chrono::seconds kCrdCheckInterval{3};
// An API server publishes a new CRD's schema within seconds. After this many checks without one, wait() returns.
constexpr int kCrdChecksWithoutSchemaMax = 10;
constexpr size_t kGapsNamedMax = 8;

std::string older_crd(const std::vector<std::string>& lacking) {
  std::string text = "the CRD trainjobs.lockstep.dev in the cluster is older than this operator (";
  text.append(build_version()).append("): it does not have ").append(first_of(lacking, kGapsNamedMax));
  return text.append(
      "; nothing is done about TrainJobs until it is brought up to date: helm upgrade with crds.enabled, or kubectl "
      "apply --server-side --force-conflicts -f manifests/base/crd.yaml");
}

// What is wrong with the cluster's CRD, in words; empty when nothing is.
Result<std::string> find_fault(kube::Client& client) {
  TRY_ASSIGN(const Json document, client.openapi(kube::kTrainJobs));
  const Json* const theirs = api::schema_of_kind(document, api::kGroup, api::kKind);
  if (theirs == nullptr) return Error{ErrorCode::kNotFound, "the server's OpenAPI document has no TrainJob"};
  const std::vector<std::string> lacking = api::schema_gaps(api::trainjob_schema(), *theirs);
  return lacking.empty() ? std::string() : older_crd(lacking);
}

}  // namespace

void CrdCheck::wait(const std::stop_token& ended) {
  ConditionVariable wake;
  for (int looks = 1; !ended.stop_requested(); ++looks) {
    const Result<std::string> found = find_fault(client_);
    MutexLock lock(mutex_);
    if (found.ok()) {
      const bool is_news = std::exchange(trouble_, *found) != *found;
      if (found->empty()) return;
      if (is_news) logger_.error(*found);
    } else if (found.error().code != ErrorCode::kRetry && looks >= kCrdChecksWithoutSchemaMax) {
      trouble_.clear();
      logger_.warning("cannot tell whether the CRD is the one that this operator needs: " + found.error().message);
      return;
    }
    wake.wait_for(lock, ended, kCrdCheckInterval, [] { return false; });
  }
}

std::optional<std::string> CrdCheck::trouble() const {
  const MutexLock lock(mutex_);
  return trouble_.empty() ? std::nullopt : std::optional(trouble_);
}

}  // namespace lockstep
