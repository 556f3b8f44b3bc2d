// MemoryApiServer: the part of an API server's behaviour that this room relies on, as an HttpTransport in memory.
//
// Objects of any resource with uid, resourceVersion, 404, 409 (exists, conflict, preconditions), finalizers, paged
// lists, watches with label selectors, bookmarks and 410, merge patches (also for server-side apply). No validation, no
// defaults, no access control: the real API server is asked elsewhere (tests/cluster).
// Threads: safe from all threads.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "operator/kube/client.h"

namespace lockstep::control {

class MemoryApiServer : public kube::HttpTransport {
 public:
  // As a HttpTransport.
  Result<kube::HttpResponse> send(const kube::HttpRequest& request) override;
  std::vector<Result<kube::HttpResponse>> send_all(std::span<const kube::HttpRequest> requests, size_t in_flight_max,
                                                   const std::stop_token& stop) override;
  Result<kube::HttpResponse> stream(const kube::HttpRequest& request,
                                    const std::function<bool(std::string_view)>& on_bytes,
                                    const std::stop_token& stop) override;
  void shut_down() override;

  // What others do on the server. `put` makes or replaces and returns the object as stored.
  Json put(const kube::Resource& resource, Json object);
  void remove(const kube::Resource& resource, const api::ObjectKey& key);
  [[nodiscard]] std::optional<Json> get(const kube::Resource& resource, const api::ObjectKey& key) const;
  [[nodiscard]] std::vector<Json> list(const kube::Resource& resource) const;

  // Faults. `answer` may answer in the server's place; it is called without a lock, from all threads.
  using Interceptor = std::function<std::optional<Result<kube::HttpResponse>>(const kube::HttpRequest&)>;
  void intercept(Interceptor answer);
  void compact();      // versions before now are gone
  void cut_watches();  // their streams end
  void send_to_watches(std::string bytes);
  void send_bookmarks();  // to all watches
  void hold();            // requests (no streams) stay without an answer …
  void release();         // … until now
  // A watch begins only once this many streams are open.
  bool wait_for_watches(size_t count) const;
  bool wait_for_held(size_t count) const;
  // Waits until it is true; looked at after every request and change.
  bool wait_until(const std::function<bool(const MemoryApiServer&)>& is_true) const;
  // "GET /api/v1/pods", "WATCH /api/v1/pods", in order.
  [[nodiscard]] std::vector<std::string> requests() const;
  [[nodiscard]] int count(const std::string& request) const;

  static kube::HttpResponse status(int code, const std::string& reason, const std::string& message);

 private:
  struct Location {
    std::string collection;  // "/api/v1/pods", of all namespaces
    api::ObjectKey key;
  };
  struct Past {
    uint64_t version;
    std::string collection;
    Json before;  // null: there was none
    Json after;   // null: there is none
    Json last;    // of a deletion: the last state with the deletion's version
  };
  using Query = std::map<std::string, std::string>;

  static Location location_of(const std::string& path);
  static Query query_of(const std::string& text);
  static bool selected(const Json& object, const std::string& ns, const std::string& selector);

  // With the lock held.
  Json store(const Location& location, Json object);
  void erase(const Location& location);
  kube::HttpResponse handle(const kube::HttpRequest& request);
  kube::HttpResponse handle_list(const Location& location, const Query& query);
  kube::HttpResponse handle_create(Location location, const Json& body);
  kube::HttpResponse handle_change(const kube::HttpRequest& request, const Location& location, const Json& body);
  kube::HttpResponse handle_delete(const Location& location, const Json& body);
  std::string frames_after(uint64_t& version, const Location& location, const std::string& selector) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::map<std::string, std::map<api::ObjectKey, Json>> objects_;  // by collection
  std::vector<Past> history_;
  std::vector<std::string> requests_;
  Interceptor intercept_;
  uint64_t version_ = 100;
  uint64_t compacted_ = 0;
  uint64_t cuts_ = 0;
  uint64_t bookmarks_ = 0;
  std::vector<std::string> bytes_;  // sent to all watches
  size_t watches_ = 0;
  size_t held_ = 0;
  bool hold_ = false;
  bool down_ = false;
};

}  // namespace lockstep::control
