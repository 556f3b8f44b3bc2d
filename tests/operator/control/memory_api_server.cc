#include "tests/operator/control/memory_api_server.h"

#include <algorithm>
#include <sstream>

#include "tests/operator/control/journal.h"

namespace lockstep::control {

namespace {

using kube::HttpRequest;
using kube::HttpResponse;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string percent_decoded(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      result.push_back(static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)));
      i += 2;
    } else {
      result.push_back(text[i]);
    }
  }
  return result;
}

HttpResponse ok(int code, const Json& body) { return {.status = code, .headers = {}, .body = dump_line(body)}; }

}  // namespace

HttpResponse MemoryApiServer::status(int code, const std::string& reason, const std::string& message) {
  return ok(code, {{"kind", "Status"},
                   {"apiVersion", "v1"},
                   {"status", "Failure"},
                   {"code", code},
                   {"reason", reason},
                   {"message", message}});
}

MemoryApiServer::Location MemoryApiServer::location_of(const std::string& path) {
  std::vector<std::string> parts = split(path, '/');
  const size_t prefix = parts.at(0) == "api" ? 2 : 3;
  Location location;
  for (size_t i = 0; i < prefix; ++i) location.collection.append("/").append(parts.at(i));
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(prefix));
  if (parts.size() > 2 && parts[0] == "namespaces") {
    location.key.ns = percent_decoded(parts[1]);
    parts.erase(parts.begin(), parts.begin() + 2);
  }
  location.collection.append("/").append(parts.at(0));
  if (parts.size() > 1) location.key.name = percent_decoded(parts[1]);
  return location;
}

MemoryApiServer::Query MemoryApiServer::query_of(const std::string& text) {
  Query query;
  for (const std::string& pair : split(text, '&')) {
    const size_t equals = pair.find('=');
    query[pair.substr(0, equals)] = equals == std::string::npos ? "" : percent_decoded(pair.substr(equals + 1));
  }
  return query;
}

bool MemoryApiServer::selected(const Json& object, const std::string& ns, const std::string& selector) {
  if (object.is_null()) return false;
  const api::ObjectMeta meta = api::meta_of(object);
  if (!ns.empty() && meta.ns != ns) return false;
  const std::vector<std::string> terms = split(selector, ',');
  return std::all_of(terms.begin(), terms.end(), [&](const std::string& term) {
    const size_t equals = term.find('=');
    const auto label = meta.labels.find(term.substr(0, equals));
    if (label == meta.labels.end()) return false;
    return equals == std::string::npos || label->second == term.substr(equals + 1);
  });
}

Json MemoryApiServer::store(const Location& location, Json object) {
  Json& stored = objects_[location.collection][location.key];
  ++version_;
  Json& metadata = object["metadata"];
  metadata["name"] = location.key.name;
  if (!location.key.ns.empty()) metadata["namespace"] = location.key.ns;
  metadata["uid"] = stored.is_null() ? Json("uid-" + std::to_string(version_)) : stored["metadata"]["uid"];
  metadata["resourceVersion"] = std::to_string(version_);
  const bool finished = metadata.contains("deletionTimestamp") && metadata.value("finalizers", Json::array()).empty();
  history_.push_back({version_, location.collection, stored, object, {}});
  stored = object;
  if (finished) erase(location);
  changed_.notify_all();
  return object;
}

void MemoryApiServer::erase(const Location& location) {
  auto& collection = objects_[location.collection];
  const auto found = collection.find(location.key);
  if (found == collection.end()) return;
  ++version_;
  Json last = found->second;
  last["metadata"]["resourceVersion"] = std::to_string(version_);
  history_.push_back({version_, location.collection, found->second, {}, std::move(last)});
  collection.erase(found);
  changed_.notify_all();
}

HttpResponse MemoryApiServer::handle(const HttpRequest& request) {
  const Location location = location_of(request.path);
  const Json body = request.body.empty() ? Json() : Json::parse(request.body);
  if (request.method == "GET" && location.key.name.empty()) return handle_list(location, query_of(request.query));
  if (request.method == "POST") return handle_create(location, body);
  if (request.method == "DELETE") return handle_delete(location, body);
  if (request.method != "GET") return handle_change(request, location, body);
  const auto& collection = objects_[location.collection];
  const auto found = collection.find(location.key);
  if (found == collection.end()) return status(404, "NotFound", "\"" + location.key.name + "\" not found");
  return ok(200, found->second);
}

HttpResponse MemoryApiServer::handle_list(const Location& location, const Query& query) {
  const auto value = [&](const char* name) {
    const auto found = query.find(name);
    return found == query.end() ? std::string() : found->second;
  };
  // All pages are of one moment on the real server. Here they are of the last; nothing in this room sees the
  // difference.
  const size_t limit = value("limit").empty() ? SIZE_MAX : std::stoul(value("limit"));
  const std::string after = value("continue");
  Json items = Json::array();
  std::string next;
  for (const auto& [key, object] : objects_[location.collection]) {
    if (!after.empty() && to_string(key) <= after) continue;
    if (!selected(object, location.key.ns, value("labelSelector"))) continue;
    if (items.size() == limit) {
      next = to_string(api::key_of(items.back()));
      break;
    }
    items.push_back(object);
  }
  Json metadata = {{"resourceVersion", std::to_string(version_)}};
  if (!next.empty()) metadata["continue"] = next;
  return ok(200, {{"kind", "List"}, {"apiVersion", "v1"}, {"metadata", metadata}, {"items", items}});
}

HttpResponse MemoryApiServer::handle_create(Location location, const Json& body) {
  location.key = api::key_of(body);
  if (objects_[location.collection].contains(location.key)) {
    return status(409, "AlreadyExists", "\"" + location.key.name + "\" already exists");
  }
  return ok(201, store(location, body));
}

HttpResponse MemoryApiServer::handle_change(const HttpRequest& request, const Location& location, const Json& body) {
  auto& collection = objects_[location.collection];
  const auto found = collection.find(location.key);
  const bool applies =
      request.method == "PATCH" && request.headers.at("Content-Type").find("apply") != std::string::npos;
  if (found == collection.end() && !applies) return status(404, "NotFound", "\"" + location.key.name + "\" not found");
  Json object = found == collection.end() ? Json::object() : found->second;
  const std::string wanted = api::meta_of(body).resource_version;
  if (!wanted.empty() && wanted != api::meta_of(object).resource_version) {
    return status(409, "Conflict", "the object has been modified; please apply your changes to the latest version");
  }
  if (request.method == "PUT" && request.path.ends_with("/status")) {
    object["status"] = body["status"];
  } else if (request.method == "PUT") {
    object = body;
  } else {
    object.merge_patch(body);
  }
  return ok(200, store(location, std::move(object)));
}

HttpResponse MemoryApiServer::handle_delete(const Location& location, const Json& body) {
  auto& collection = objects_[location.collection];
  const auto found = collection.find(location.key);
  if (found == collection.end()) return status(404, "NotFound", "\"" + location.key.name + "\" not found");
  const api::ObjectMeta meta = api::meta_of(found->second);
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"uid", meta.uid}, {"resourceVersion", meta.resource_version}}) {
    const std::string wanted = text_field(body, {"preconditions", name});
    if (!wanted.empty() && wanted != value)
      return status(409, "Conflict", "the precondition " + name + " does not hold");
  }
  if (meta.finalizers.empty()) {
    erase(location);
  } else if (!meta.deletion_time) {
    Json marked = found->second;
    marked["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z";
    store(location, std::move(marked));
  }
  return ok(200, {{"kind", "Status"}, {"status", "Success"}});
}

Result<HttpResponse> MemoryApiServer::send(const HttpRequest& request) {
  Interceptor intercept;
  {
    std::unique_lock lock(mutex_);
    requests_.push_back(request.method + " " + request.path);
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !hold_ || down_; });
    --held_;
    if (down_) return Error{ErrorCode::kCancelled, "shut down"};
    intercept = intercept_;
  }
  if (intercept) {
    if (auto answer = intercept(request); answer) return *std::move(answer);
  }
  const std::lock_guard lock(mutex_);
  return handle(request);
}

std::vector<Result<HttpResponse>> MemoryApiServer::send_all(std::span<const HttpRequest> requests, size_t,
                                                            const std::stop_token&) {
  std::vector<Result<HttpResponse>> answers;
  answers.reserve(requests.size());
  for (const HttpRequest& request : requests) answers.push_back(send(request));
  return answers;
}

// One frame per event after `version`, which is moved.
std::string MemoryApiServer::frames_after(uint64_t& version, const Location& location,
                                          const std::string& selector) const {
  std::string frames;
  for (const Past& past : history_) {
    if (past.version <= version) continue;
    version = past.version;
    if (past.collection != location.collection) continue;
    const bool was = selected(past.before, location.key.ns, selector);
    const bool is = selected(past.after, location.key.ns, selector);
    if (!was && !is) continue;
    const char* type = !was ? "ADDED" : is ? "MODIFIED" : "DELETED";
    // What leaves the selection is shown as it was, with the version of the change.
    Json object = is ? past.after : past.before;
    object["metadata"]["resourceVersion"] = std::to_string(past.version);
    frames.append(dump_line(Json{{"type", type}, {"object", object}})).append("\n");
  }
  return frames;
}

Result<HttpResponse> MemoryApiServer::stream(const HttpRequest& request,
                                             const std::function<bool(std::string_view)>& on_bytes,
                                             const std::stop_token& stop) {
  Interceptor intercept;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back("WATCH " + request.path);
    intercept = intercept_;
    changed_.notify_all();
  }
  if (intercept) {
    if (auto answer = intercept(request); answer) return *std::move(answer);
  }
  const Location location = location_of(request.path);
  const Query query = query_of(request.query);
  const auto selector = query.find("labelSelector");
  const std::string labels = selector == query.end() ? std::string() : selector->second;
  uint64_t version = std::stoull(query.at("resourceVersion"));

  std::unique_lock lock(mutex_);
  const uint64_t cuts = cuts_;
  uint64_t bookmarks = bookmarks_;
  size_t bytes_sent = bytes_.size();
  const bool too_old = version < compacted_;
  ++watches_;
  changed_.notify_all();
  Result<HttpResponse> end = HttpResponse{.status = 200};
  while (true) {
    std::string frames;
    if (too_old) {
      const Json error = Json::parse(status(410, "Expired", "too old resource version").body);
      frames = dump_line(Json{{"type", "ERROR"}, {"object", error}}).append("\n");
    } else {
      frames = frames_after(version, location, labels);
    }
    for (; bytes_sent < bytes_.size(); ++bytes_sent) frames.append(bytes_[bytes_sent]);
    if (bookmarks != bookmarks_) {
      bookmarks = bookmarks_;
      version = version_;
      const Json mark = {{"kind", "X"}, {"metadata", {{"resourceVersion", std::to_string(version)}}}};
      frames.append(dump_line(Json{{"type", "BOOKMARK"}, {"object", mark}})).append("\n");
    }
    if (!frames.empty()) {
      lock.unlock();
      const bool go_on = on_bytes(frames);
      lock.lock();
      if (!go_on) break;
    }
    if (stop.stop_requested() || down_) {
      end = Error{ErrorCode::kCancelled, "told to stop"};
      break;
    }
    if (cuts != cuts_) break;
    changed_.wait(lock, stop, [&] {
      const bool news = !history_.empty() && history_.back().version > version;
      return news || cuts != cuts_ || bookmarks != bookmarks_ || bytes_sent != bytes_.size() || down_;
    });
  }
  --watches_;
  changed_.notify_all();
  return end;
}

void MemoryApiServer::shut_down() {
  const std::lock_guard lock(mutex_);
  down_ = true;
  changed_.notify_all();
}

Json MemoryApiServer::put(const kube::Resource& resource, Json object) {
  const std::lock_guard lock(mutex_);
  const Location location{kube::collection_path(resource, ""), api::key_of(object)};
  return store(location, std::move(object));
}

void MemoryApiServer::remove(const kube::Resource& resource, const api::ObjectKey& key) {
  const std::lock_guard lock(mutex_);
  erase({kube::collection_path(resource, ""), key});
}

std::optional<Json> MemoryApiServer::get(const kube::Resource& resource, const api::ObjectKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto collection = objects_.find(kube::collection_path(resource, ""));
  if (collection == objects_.end()) return std::nullopt;
  const auto found = collection->second.find(key);
  if (found == collection->second.end()) return std::nullopt;
  return found->second;
}

std::vector<Json> MemoryApiServer::list(const kube::Resource& resource) const {
  const std::lock_guard lock(mutex_);
  std::vector<Json> objects;
  const auto collection = objects_.find(kube::collection_path(resource, ""));
  if (collection == objects_.end()) return objects;
  for (const auto& [key, object] : collection->second) objects.push_back(object);
  return objects;
}

void MemoryApiServer::intercept(Interceptor answer) {
  const std::lock_guard lock(mutex_);
  intercept_ = std::move(answer);
}

void MemoryApiServer::compact() {
  const std::lock_guard lock(mutex_);
  ++version_;
  compacted_ = version_;
}

void MemoryApiServer::cut_watches() {
  const std::lock_guard lock(mutex_);
  ++cuts_;
  changed_.notify_all();
}

void MemoryApiServer::send_to_watches(std::string bytes) {
  const std::lock_guard lock(mutex_);
  bytes_.push_back(std::move(bytes));
  changed_.notify_all();
}

void MemoryApiServer::send_bookmarks() {
  const std::lock_guard lock(mutex_);
  ++bookmarks_;
  changed_.notify_all();
}

void MemoryApiServer::hold() {
  const std::lock_guard lock(mutex_);
  hold_ = true;
}

void MemoryApiServer::release() {
  const std::lock_guard lock(mutex_);
  hold_ = false;
  changed_.notify_all();
}

bool MemoryApiServer::wait_for_watches(size_t count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return watches_ == count; });
}

bool MemoryApiServer::wait_for_held(size_t count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return held_ == count; });
}

bool MemoryApiServer::wait_until(const std::function<bool(const MemoryApiServer&)>& is_true) const {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!is_true(*this)) {
    std::unique_lock lock(mutex_);
    // What is asked takes the lock itself, so a change may slip in between: looked at again soon.
    changed_.wait_for(lock, std::chrono::milliseconds(20));
    if (std::chrono::steady_clock::now() > until) return false;
  }
  return true;
}

std::vector<std::string> MemoryApiServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

int MemoryApiServer::count(const std::string& request) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count(requests_.begin(), requests_.end(), request));
}

}  // namespace lockstep::control
