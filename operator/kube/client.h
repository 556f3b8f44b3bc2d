// Client: the Kubernetes API over an HttpTransport, in objects instead of bytes.
//
// Role: everything that the operator asks of an API server. It adds what every request needs (credentials, user agent,
// field manager, Retry-After, the client-side rate limit, request metrics) and turns metav1.Status into an Error.
// Threads: safe from all threads; calls block, each for at most about `retry_for` and one request's time-out, plus its
// place in the queue of the rate limit. Requests that must not wait there behind others (the lease) get a Client of
// their own over the same transport.
// Errors: by what the caller does next; `reason` is metav1.Status.reason or a more precise word ("AlreadyExists",
// "Conflict", "NamespaceTerminating", …; api_error.h), the message is the server's with the field paths of its causes.
//   400, 405, 406, 413, 415, 422  kInvalid      401  kForbidden (credentials)   403  kForbidden
//   404  kNotFound   409 AlreadyExists  kExists   409 other  kConflict   410  kGone
//   429, 500, 502, 503, 504, no connection  kRetry, after retries of its own for as long as `retry_for` allows
//   (retry.h: Retry-After obeyed; a request that is not idempotent is only sent again when the server said that it did
//   nothing, or never received it).
//   TLS refused  kUnavailable with reason kReasonTlsRefused: a person must act.
//   An answer that is not JSON where JSON is due, or too large (kReasonTooLarge): kCorrupt. Told to stop: kCancelled.
// Objects are read by read_object (object_text.h), which leaves out what is too large.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "operator/api/object_meta.h"
#include "operator/kube/http_transport.h"
#include "operator/kube/resource.h"
#include "operator/kube/watch_event.h"
#include "runner/base/json.h"

namespace lockstep::kube {

inline constexpr std::string_view kFieldManager = "lockstep-operator";

struct ListOptions {
  std::string ns;  // empty: all namespaces
  std::string label_selector;
  std::string field_selector;
  // `limit`; pages are fetched one after the other. A page whose bytes are too many is asked for again with half as
  // many objects.
  int page_size = 50;
  // Takes each item as it is read, in place of ObjectList::items: ten thousand whole pods would take much memory. A
  // list that has to begin anew calls `on_begin` again, and what it has brought so far does not count.
  std::function<void()> on_begin;
  std::function<void(Json item)> on_item;
};

struct ObjectList {
  std::vector<Json> items;  // with apiVersion and kind, which a list leaves out of its items
  std::string resource_version;
};

struct WatchOptions {
  std::string ns;
  std::string label_selector;
  std::string field_selector;
  std::string resource_version;  // go on after this one
  std::chrono::seconds server_timeout{290};
  // A watch that receives no byte for this long counts as ended, because a dead connection reports no error. The
  // server sends a bookmark about every minute; if it does not, to watch again from the last version costs little.
  std::chrono::milliseconds silence_max{100'000};
};

struct CreateOptions {
  bool strict_fields = false;  // fieldValidation=Strict: unknown and duplicate fields are errors
};

struct DeleteOptions {
  // Preconditions: kConflict when another object has the name by now, or when somebody has written since.
  std::string uid;
  std::string resource_version;
};

// Requests of send_all. Each means what the call of that name means; the resource outlives the call.
struct Get {
  const Resource& resource;
  api::ObjectKey key;
};
struct Create {
  const Resource& resource;
  Json object;
  CreateOptions options = {};
};
struct MergePatch {
  const Resource& resource;
  api::ObjectKey key;
  Json patch;
};
struct Remove {  // answered with nothing
  const Resource& resource;
  api::ObjectKey key;
  DeleteOptions options = {};
};
using Request = std::variant<Get, Create, MergePatch, Remove>;

// For the metrics rest_client_requests_total and rest_client_request_duration_seconds.
struct RequestReport {
  std::string verb;      // "list", "watch", "create", "apply", "patch", "update", "delete", "get"
  std::string resource;  // plural
  int status = 0;        // 0: no answer
  // From sending to the end of the answer; of a watch, to its beginning. Without the waits before and between.
  std::chrono::duration<double> duration{0.0};
};

struct ClientOptions {
  std::string user_agent = "lockstep-operator";
  double requests_per_second = 500.0;  // client-side limit, token bucket
  int burst = 1000;
  std::chrono::milliseconds retry_for{10'000};        // per call, for what the header calls kRetry
  size_t in_flight_max = 32;                          // of send_all; each has a connection, whose TLS costs
  std::chrono::milliseconds request_timeout{30'000};  // of one attempt; a page of a list may take twice as long
  // Called for every request; absent: none is sent. After a 401 `token_refused` is called, and the request is sent once
  // more with what `bearer_token` says then.
  std::function<Result<std::string>()> bearer_token;
  std::function<void()> token_refused;
  std::function<void(const RequestReport&)> on_request;  // once per attempt, on the calling thread
  std::stop_token stop;  // ends waits, and with the transport's shut_down all calls, with kCancelled
  // Tests replace the clock, the waits (false: told to stop) and the random numbers. Absent: the real ones.
  std::function<std::chrono::steady_clock::time_point()> now;
  std::function<bool(std::chrono::milliseconds)> wait;
  std::function<double()> random;  // [0, 1)
};

class Client {
 public:
  Client(std::shared_ptr<HttpTransport> transport, ClientOptions options);
  ~Client();

  Result<Json> get(const Resource& resource, const api::ObjectKey& key);
  Result<ObjectList> list(const Resource& resource, const ListOptions& options);

  // Calls `on_event` on the caller's thread for each event. Returns ok when the server ends the watch or sends nothing
  // for silence_max: the caller watches again from the last version. Errors: kCancelled (`stop`), kGone (the version is
  // too old) and kCorrupt (a line cannot be read): after the last two the caller lists again.
  Status watch(const Resource& resource, const WatchOptions& options, const std::function<void(WatchEvent)>& on_event,
               const std::stop_token& stop);

  // The namespace is the object's own. Returns the object as stored.
  Result<Json> create(const Resource& resource, const Json& object, const CreateOptions& options = {});
  // Sends the requests in parallel, at most in_flight_max at a time; the answers are in the order of the requests.
  std::vector<Result<Json>> send_all(std::span<const Request> requests);
  // Server-side apply with kFieldManager, which takes over fields of others. `object` needs apiVersion, kind and
  // metadata.name.
  Result<Json> apply(const Resource& resource, const Json& object);
  // Replaces; the object's resourceVersion is a precondition when it is there. `subresource`: "status" or "".
  Result<Json> update(const Resource& resource, const Json& object, const std::string& subresource = "");
  // RFC 7396. A `metadata.resourceVersion` in the patch is a precondition.
  Result<Json> merge_patch(const Resource& resource, const api::ObjectKey& key, const Json& patch,
                           const std::string& subresource = "");
  // kNotFound when it is gone already; ok once it is marked or gone.
  Status remove(const Resource& resource, const api::ObjectKey& key, const DeleteOptions& options = {});

  // Does the server know this resource? (API discovery, one group's document.)
  Result<bool> serves(const Resource& resource);
  // The OpenAPI v3 document of the resource's group and version: the schemas that the server stores by.
  Result<Json> openapi(const Resource& resource);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::kube
