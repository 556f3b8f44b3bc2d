// EventRecorder: Kubernetes Events (core/v1), aggregated, for `kubectl describe`.
//
// The same (object, reason, message) within ten minutes becomes one Event whose count rises; a flood of different
// messages for one object is limited by a token bucket (25, then one in 5 minutes, as client-go's). The decisions are
// event_aggregator.h's. Recording never blocks a reconciler and never fails one: a thread of its own writes, and drops
// the oldest when 1,000 wait.
// Threads: safe from all threads; one of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "operator/api/object_meta.h"
#include "operator/control/clock.h"
#include "operator/kube/client.h"
#include "runner/base/log.h"

namespace lockstep::control {

struct ObjectReference {
  std::string api_version;
  std::string kind;
  api::ObjectKey key;
  std::string uid;
  std::string resource_version;
};

struct EventText {
  enum class Type { kNormal, kWarning };
  Type type = Type::kNormal;
  std::string reason;   // CamelCase
  std::string message;  // a sentence; cut at 1,024 bytes
  std::string action;   // CamelCase, what was done ("ReplacePod"); may be empty
};

class EventRecorder {
 public:
  struct Options {
    std::string component = "lockstep-operator";  // source.component, reportingComponent
    std::string instance;                         // reportingInstance: this process
    Logger logger = Logger::silent();
    Now now = Clock::now;
    std::function<api::UnixSeconds()> wall;  // the system's clock when it is absent
    Random random = system_random();
  };
  // `client` outlives the recorder.
  EventRecorder(kube::Client& client, Options options);
  // Writes waiting Events for up to 2 s, then waits for the request in flight.
  ~EventRecorder();
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;

  void record(const ObjectReference& about, EventText text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
