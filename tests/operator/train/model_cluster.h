// ModelCluster: an API server, kubelets and people, as small as make_plan needs them. Deterministic by its seed.
//
// It keeps the promises that the plan is built on, and no others: a status write with an old resourceVersion is
// refused, a name exists once, a delete or patch with another UID is refused. Everything else may happen in any order.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "operator/train/observed.h"
#include "operator/train/plan.h"

namespace lockstep::train {

class ModelCluster {
 public:
  ModelCluster(unsigned seed, Json spec);

  // ---- the API server ----
  bool write_status(int64_t resource_version, const api::TrainJobStatus& status);  // false: conflict
  std::optional<Json> create_pod(const Json& pod);                                 // nothing: the name exists
  bool stop_serving(const std::string& name, const std::string& uid);
  bool delete_pod(const std::string& name, const std::string& uid);
  void make_service(Json service) { service_ = std::move(service); }

  // ---- the world ----
  void live(bool is_calm);  // something happens: a pod starts, fails, ends; a node goes; somebody changes the spec
  void fail(const std::string& pod, int code, const std::string& termination_message = "");
  void change_spec(const Json& patch);
  void pass_time(api::UnixSeconds seconds) { now_ += seconds; }
  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  // ---- what can be seen ----
  struct Change {
    std::string name;
    std::optional<Json> pod;  // nothing: it is gone
  };
  [[nodiscard]] const std::vector<Change>& changes() const { return changes_; }
  [[nodiscard]] const std::vector<Json>& jobs() const { return jobs_; }  // all versions
  [[nodiscard]] const std::map<std::string, Json>& pods() const { return pods_; }
  [[nodiscard]] const Json& job() const { return jobs_.back(); }
  [[nodiscard]] std::vector<Json> nodes() const;
  [[nodiscard]] const std::optional<Json>& service() const { return service_; }
  [[nodiscard]] api::UnixSeconds now() const { return now_; }
  [[nodiscard]] bool is_finished() const;

  // Number of pods of each node rank whose program may run and that the Service lists.
  [[nodiscard]] std::map<int, int> live_serving_pods() const;
  // Unrequested ends: pods that failed, were lost, or were deleted by others than the operator.
  [[nodiscard]] int failures() const { return failures_; }

 private:
  void note(const std::string& name);
  void start_or_end(Json& pod, bool is_calm);
  void inject_failure(const std::string& name);

  std::mt19937 random_;
  api::UnixSeconds now_ = 1'795'255'200;
  std::vector<Json> jobs_;
  std::map<std::string, Json> pods_;
  std::vector<Change> changes_;
  std::map<std::string, bool> nodes_;                    // name → alive
  std::map<std::string, api::UnixSeconds> nodes_since_;  // since when
  std::optional<Json> service_;
  int uids_ = 0;
  int failures_ = 0;
};

}  // namespace lockstep::train
