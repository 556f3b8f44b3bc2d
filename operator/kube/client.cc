#include "operator/kube/client.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "operator/kube/api_error.h"
#include "operator/kube/object_text.h"
#include "operator/kube/rate_limit.h"
#include "operator/kube/retry.h"
#include "operator/kube/watch_decoder.h"
#include "runner/base/mutex.h"

namespace lockstep::kube {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How often a paged list begins again because its continue token has expired: many pages may take longer than the
// server keeps old versions. Each time a page has ten times as many objects.
constexpr int kListRestartsMax = 2;
constexpr int kListRestartFactor = 10;
constexpr int kListTimeoutFactor = 2;

constexpr const char* kJson = "application/json";
constexpr const char* kMergePatch = "application/merge-patch+json";
constexpr const char* kApplyPatch = "application/apply-patch+yaml";  // JSON is YAML

// One request as the retry loop sees it.
struct Call {
  HttpRequest http;
  std::string verb;      // for reports
  std::string resource;  // plural, for reports
  std::string what;      // "create pods team-a/x-0-0", for messages
  bool idempotent = true;
  bool has_body = true;                   // the answer's is wanted
  std::optional<size_t> field_bytes_max;  // of read_object for the answer; nothing: a document of the server's own
};

std::string describe(const std::string& verb, const Resource& resource, const api::ObjectKey& key,
                     const std::string& subresource = "") {
  std::string text = verb;
  text.append(" ").append(resource.plural);
  if (!subresource.empty()) text.append("/").append(subresource);
  if (!key.name.empty()) return text.append(" ").append(api::to_string(key));
  return key.ns.empty() ? text : text.append(" in ").append(key.ns);
}

Status check_object(const Resource& resource, const Json& object, const std::string& verb) {
  const api::ObjectKey key = api::key_of(object);
  if (key.name.empty()) return invalid(describe(verb, resource, key), "metadata.name is missing");
  if (resource.namespaced && key.ns.empty()) {
    return invalid(describe(verb, resource, key), "metadata.namespace is missing");
  }
  return {};
}

// The attempts of one request. ClientOptions::retry_for counts from the first attempt (`began`): the time before, in
// the queue of the rate limit and perhaps behind thousands of other requests, is not the server's fault.
struct Progress {
  std::optional<Clock::time_point> began;
  int attempts = 0;
  bool token_renewed = false;

  void attempt_at(Clock::time_point now) {
    if (!began) began = now;
  }
};

Error as_retry(Error error) {
  const bool for_a_person = error.reason == kReasonTlsRefused;
  if (error.code == ErrorCode::kUnavailable && !for_a_person) error.code = ErrorCode::kRetry;
  return error;
}

}  // namespace

struct Client::Impl {
  Impl(std::shared_ptr<HttpTransport> http, ClientOptions client_options)
      : transport(std::move(http)),
        options(std::move(client_options)),
        limit(options.requests_per_second, options.burst) {}

  // --- time ---

  Clock::time_point now() const { return options.now ? options.now() : Clock::now(); }

  // False: told to stop, by the client's token or by the call's own.
  bool wait(milliseconds time, const std::stop_token& stop = {}) {
    const auto stopped = [&] { return options.stop.stop_requested() || stop.stop_requested(); };
    if (stopped()) return false;
    if (time <= milliseconds::zero()) return true;
    if (options.wait) return options.wait(time) && !stopped();
    Mutex waiting;
    ConditionVariable changed;
    const auto wake = [&] {
      const MutexLock lock(waiting);  // else the wake-up could fall between the check of the token and the wait
      changed.notify_all();
    };
    const std::stop_callback on_client_stop(options.stop, wake);
    const std::stop_callback on_call_stop(stop, wake);
    MutexLock lock(waiting);
    return !changed.wait_for(lock, time, stopped);
  }

  double random() {
    if (options.random) return options.random();
    const MutexLock lock(mutex);
    return std::uniform_real_distribution<double>(0.0, 1.0)(generator);
  }

  // Waits until the rate limit allows `count` requests. False: told to stop.
  bool wait_for_turn(int count, const std::stop_token& stop = {}) {
    RateLimit::Clock::duration time{};
    {
      const MutexLock lock(mutex);
      time = limit.reserve(now(), count);
    }
    return wait(std::chrono::ceil<milliseconds>(time), stop);
  }

  // --- requests ---

  Status add_credentials(HttpRequest& request) const {
    request.headers["User-Agent"] = options.user_agent;
    request.headers.emplace("Accept", kJson);
    if (!options.bearer_token) return {};
    TRY_ASSIGN(const std::string token, options.bearer_token());
    if (!token.empty()) request.headers["Authorization"] = "Bearer " + token;
    return {};
  }

  void report(const Call& call, const Result<HttpResponse>& outcome, Clock::duration took) const {
    if (!options.on_request) return;
    options.on_request({call.verb, call.resource, outcome.ok() ? outcome->status : 0, took});
  }

  Error cancelled(const Call& call) const { return Error{ErrorCode::kCancelled, call.what + ": told to stop"}; }

  // How long to wait before the next attempt; nothing: the outcome is final.
  std::optional<milliseconds> next_attempt(const Call& call, const Result<HttpResponse>& outcome, Progress& progress) {
    ++progress.attempts;
    if (outcome.ok() && outcome->status == 401 && options.token_refused && !progress.token_renewed) {
      progress.token_renewed = true;
      options.token_refused();
      return milliseconds::zero();
    }
    const RetryQuestion question{
        .idempotent = call.idempotent,
        .attempts = progress.attempts,
        .elapsed = std::chrono::duration_cast<milliseconds>(now() - progress.began.value_or(now())),
        .retry_for = options.retry_for,
        .random = random()};
    return wait_before_retry(question, outcome);
  }

  // The answer when it is 2xx, else the error that it is.
  static Result<HttpResponse> settle(const Call& call, Result<HttpResponse> outcome) {
    if (!outcome.ok()) return as_retry(outcome.error().with_context(call.what));
    if (outcome->status / 100 != 2) return error_of_answer(*outcome, call.what);
    return outcome;
  }

  // Sends the request until it succeeds or an outcome is final. `attempt` sends it once.
  Result<HttpResponse> perform(Call call, const std::function<Result<HttpResponse>(const HttpRequest&)>& attempt,
                               const std::stop_token& stop = {}) {
    Progress progress;
    while (true) {
      if (!wait_for_turn(1, stop)) return cancelled(call);
      TRY(add_credentials(call.http));
      progress.attempt_at(now());
      Result<HttpResponse> outcome = attempt(call.http);
      const std::optional<milliseconds> pause = next_attempt(call, outcome, progress);
      if (!pause) return settle(call, std::move(outcome));
      if (!wait(*pause, stop)) return cancelled(call);
    }
  }

  Result<HttpResponse> perform(const Call& call) {
    return perform(call, [&](const HttpRequest& request) {
      const Clock::time_point began = now();
      Result<HttpResponse> outcome = transport->send(request);
      report(call, outcome, now() - began);
      return outcome;
    });
  }

  static Result<Json> body_of(const Call& call, const HttpResponse& answer) {
    if (!call.has_body) return Json();
    Result<Json> body = call.field_bytes_max ? read_object(answer.body, *call.field_bytes_max)
                                             : parse_json(answer.body, "the document");
    if (!body.ok()) return body.error().with_context(call.what + ": the answer");
    if (!body->is_object()) return Error{ErrorCode::kCorrupt, call.what + ": the answer is no object"};
    return body;
  }

  Result<Json> perform_for_object(const Call& call) {
    TRY_ASSIGN(const HttpResponse answer, perform(call));
    return body_of(call, answer);
  }

  // A list without objects is answered with an empty list, so 404 means that the server does not know the resource.
  static Error unknown(const Resource& resource, const Call& call) {
    std::string text = call.what + ": the server does not know " + resource.plural + " of " + resource.api_version();
    if (!resource.group.empty()) {
      text.append(": install the CRD ").append(resource.plural).append(".").append(resource.group);
    }
    return {ErrorCode::kNotFound, std::move(text)};
  }

  Call call_for(const char* method, const std::string& verb, const Resource& resource, const std::string& what) const {
    Call call;
    call.http.method = method;
    call.http.timeout = options.request_timeout;
    call.verb = verb;
    call.resource = resource.plural;
    call.what = what;
    call.field_bytes_max = resource.field_bytes_max;
    return call;
  }

  // A request whose answer is the object as stored.
  Call write_call(const char* method, const std::string& verb, const Resource& resource, const api::ObjectKey& key,
                  const std::string& subresource, const char* content_type, const Json& body) const {
    Call call = call_for(method, verb, resource, describe(verb, resource, key, subresource));
    call.http.path = object_path(resource, key, subresource);
    call.http.query = Query().add("fieldManager", kFieldManager).text();
    call.http.headers["Content-Type"] = content_type;
    call.http.body = dump_line(body);
    return call;
  }

  Call create_call(const Resource& resource, const Json& object, const CreateOptions& create) const {
    const api::ObjectKey key = api::key_of(object);
    Call call = write_call("POST", "create", resource, key, "", kJson, object);
    call.http.path = collection_path(resource, key.ns);
    if (create.strict_fields) call.http.query += "&fieldValidation=Strict";
    call.idempotent = false;
    return call;
  }

  Call get_call(const Resource& resource, const api::ObjectKey& key) const {
    Call call = call_for("GET", "get", resource, describe("get", resource, key));
    call.http.path = object_path(resource, key);
    return call;
  }

  Call merge_patch_call(const Resource& resource, const api::ObjectKey& key, const Json& patch,
                        const std::string& subresource = "") const {
    return write_call("PATCH", "patch", resource, key, subresource, kMergePatch, patch);
  }

  Call delete_call(const Resource& resource, const api::ObjectKey& key, const DeleteOptions& remove) const {
    Call call = call_for("DELETE", "delete", resource, describe("delete", resource, key));
    Json body = {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}, {"propagationPolicy", "Background"}};
    if (!remove.uid.empty()) body["preconditions"]["uid"] = remove.uid;
    if (!remove.resource_version.empty()) body["preconditions"]["resourceVersion"] = remove.resource_version;
    call.http.path = object_path(resource, key);
    call.http.headers["Content-Type"] = kJson;
    call.http.body = dump_line(body);
    call.has_body = false;
    return call;
  }

  // Of a request of send_all.
  Result<Call> call_of(const Get& request) const { return get_call(request.resource, request.key); }
  Result<Call> call_of(const Create& request) const {
    TRY(check_object(request.resource, request.object, "create"));
    return create_call(request.resource, request.object, request.options);
  }
  Result<Call> call_of(const MergePatch& request) const {
    return merge_patch_call(request.resource, request.key, request.patch);
  }
  Result<Call> call_of(const Remove& request) const {
    return delete_call(request.resource, request.key, request.options);
  }

  Result<ObjectList> list_in_pages(const Resource& resource, const ListOptions& list, int page_size);
  void send_round(std::vector<Call>& calls, std::vector<size_t>& pending,
                  std::vector<std::optional<Result<Json>>>& answers, std::vector<Progress>& progress);

  const std::shared_ptr<HttpTransport> transport;
  const ClientOptions options;
  Mutex mutex;
  RateLimit limit GUARDED_BY(mutex);
  std::minstd_rand generator GUARDED_BY(mutex){std::random_device{}()};
};

Client::Client(std::shared_ptr<HttpTransport> transport, ClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(transport), std::move(options))) {}
Client::~Client() = default;

// --- reading ---

Result<Json> Client::get(const Resource& resource, const api::ObjectKey& key) {
  return impl_->perform_for_object(impl_->get_call(resource, key));
}

Result<ObjectList> Client::list(const Resource& resource, const ListOptions& options) {
  int page_size = options.page_size;
  for (int restarts = 0;; ++restarts) {
    Result<ObjectList> list = impl_->list_in_pages(resource, options, page_size);
    const bool continuation_too_old = !list.ok() && list.error().code == ErrorCode::kGone;
    if (!continuation_too_old || restarts == kListRestartsMax) return list;
    page_size *= kListRestartFactor;
  }
}

Result<ObjectList> Client::Impl::list_in_pages(const Resource& resource, const ListOptions& list, int page_size) {
  Call call = call_for("GET", "list", resource, describe("list", resource, {list.ns, ""}));
  call.http.path = collection_path(resource, list.ns);
  call.http.timeout *= kListTimeoutFactor;
  ObjectList result;
  std::string continuation;
  if (list.on_begin) list.on_begin();
  while (true) {
    Query query;
    query.add_if("labelSelector", list.label_selector).add_if("fieldSelector", list.field_selector);
    query.add("limit", std::to_string(page_size)).add_if("continue", continuation);
    call.http.query = query.text();
    const Result<HttpResponse> answer = perform(call);
    if (!answer.ok() && answer.error().reason == kReasonTooLarge && page_size > 1) {
      page_size /= 2;
      continue;
    }
    if (!answer.ok()) return answer.error().code == ErrorCode::kNotFound ? unknown(resource, call) : answer.error();
    const auto keep = [&](Json item) {
      item["apiVersion"] = resource.api_version();
      item["kind"] = resource.kind;
      list.on_item ? list.on_item(std::move(item)) : result.items.push_back(std::move(item));
    };
    Result<ListHead> head = read_list(answer->body, keep, resource.field_bytes_max);
    if (!head.ok()) return head.error().with_context(call.what + ": the answer");
    result.resource_version = std::move(head->resource_version);
    continuation = std::move(head->continuation);
    if (continuation.empty()) return result;
  }
}

Status Client::watch(const Resource& resource, const WatchOptions& options,
                     const std::function<void(WatchEvent)>& on_event, const std::stop_token& stop) {
  Call call = impl_->call_for("GET", "watch", resource, describe("watch", resource, {options.ns, ""}));
  Query query;
  query.add("watch", "1").add("allowWatchBookmarks", "true");
  query.add("timeoutSeconds", std::to_string(options.server_timeout.count()));
  query.add_if("labelSelector", options.label_selector).add_if("fieldSelector", options.field_selector);
  query.add_if("resourceVersion", options.resource_version);
  call.http.path = collection_path(resource, options.ns);
  call.http.query = query.text();
  call.http.timeout = options.silence_max;

  Status decoded;
  const auto attempt = [&](const HttpRequest& request) -> Result<HttpResponse> {
    WatchDecoder decoder(kWatchLineBytesMax, resource.field_bytes_max);
    Result<HttpResponse> outcome = impl_->transport->stream(
        request,
        [&](std::string_view bytes) {
          decoded = decoder.decode(bytes, on_event);
          return decoded.ok();
        },
        stop);
    impl_->report(call, outcome, outcome.ok() ? outcome->duration : Clock::duration::zero());
    return outcome;
  };
  const Result<HttpResponse> answer = impl_->perform(call, attempt, stop);
  if (!answer.ok()) return answer.error();
  if (!decoded.ok()) return decoded.error().with_context(call.what);
  return {};
}

// --- writing ---

Result<Json> Client::create(const Resource& resource, const Json& object, const CreateOptions& options) {
  TRY(check_object(resource, object, "create"));
  return impl_->perform_for_object(impl_->create_call(resource, object, options));
}

std::vector<Result<Json>> Client::send_all(std::span<const Request> requests) {
  std::vector<Call> calls(requests.size());
  std::vector<std::optional<Result<Json>>> answers(requests.size());
  std::vector<size_t> pending;
  for (size_t i = 0; i < requests.size(); ++i) {
    Result<Call> call = std::visit([this](const auto& request) { return impl_->call_of(request); }, requests[i]);
    if (call.ok()) {
      calls[i] = *std::move(call);
      pending.push_back(i);
    } else {
      answers[i] = call.error();
    }
  }
  std::vector<Progress> progress(requests.size());
  while (!pending.empty()) impl_->send_round(calls, pending, answers, progress);
  std::vector<Result<Json>> all;
  all.reserve(answers.size());
  for (auto& answer : answers) all.push_back(*std::move(answer));
  return all;
}

// Sends every pending call once, as many at a time as the rate limit has places; those to be sent again stay pending.
void Client::Impl::send_round(std::vector<Call>& calls, std::vector<size_t>& pending,
                              std::vector<std::optional<Result<Json>>>& answers, std::vector<Progress>& progress) {
  std::vector<size_t> again;
  milliseconds pause{0};
  for (size_t begin = 0; begin < pending.size();) {
    size_t count = pending.size() - begin;
    {
      const MutexLock lock(mutex);
      const auto free_slots = static_cast<size_t>(limit.available(now()));
      count = std::min(count, std::max({free_slots, options.in_flight_max, size_t{1}}));
    }
    const bool go_on = wait_for_turn(static_cast<int>(count));
    std::vector<HttpRequest> requests;
    Status credentials;
    for (size_t i = begin; i < begin + count; ++i) {
      if (credentials.ok()) credentials = add_credentials(calls[pending[i]].http);
      progress[pending[i]].attempt_at(now());
      requests.push_back(std::move(calls[pending[i]].http));
    }
    std::vector<Result<HttpResponse>> outcomes;
    if (go_on && credentials.ok()) outcomes = transport->send_all(requests, options.in_flight_max, options.stop);
    for (size_t i = 0; i < count; ++i) {
      const size_t index = pending[begin + i];
      Call& call = calls[index];
      if (outcomes.empty()) {
        answers[index] = go_on ? credentials.error() : cancelled(call);
        continue;
      }
      report(call, outcomes[i], outcomes[i].ok() ? outcomes[i]->duration : Clock::duration::zero());
      if (const auto wanted = next_attempt(call, outcomes[i], progress[index])) {
        again.push_back(index);
        call.http = std::move(requests[i]);
        pause = std::max(pause, *wanted);
        continue;
      }
      const Result<HttpResponse> settled = settle(call, std::move(outcomes[i]));
      answers[index] = settled.ok() ? body_of(call, *settled) : Result<Json>(settled.error());
    }
    begin += count;
  }
  if (!again.empty() && !wait(pause)) {
    for (const size_t index : again) answers[index] = cancelled(calls[index]);
    again.clear();
  }
  pending = std::move(again);
}

Result<Json> Client::apply(const Resource& resource, const Json& object) {
  TRY(check_object(resource, object, "apply"));
  Call call = impl_->write_call("PATCH", "apply", resource, api::key_of(object), "", kApplyPatch, object);
  call.http.query += "&force=true";
  return impl_->perform_for_object(call);
}

Result<Json> Client::update(const Resource& resource, const Json& object, const std::string& subresource) {
  TRY(check_object(resource, object, "update"));
  return impl_->perform_for_object(
      impl_->write_call("PUT", "update", resource, api::key_of(object), subresource, kJson, object));
}

Result<Json> Client::merge_patch(const Resource& resource, const api::ObjectKey& key, const Json& patch,
                                 const std::string& subresource) {
  return impl_->perform_for_object(impl_->merge_patch_call(resource, key, patch, subresource));
}

Status Client::remove(const Resource& resource, const api::ObjectKey& key, const DeleteOptions& options) {
  const Result<HttpResponse> answer = impl_->perform(impl_->delete_call(resource, key, options));
  if (!answer.ok()) return answer.error();
  return {};
}

// --- the server ---

Result<bool> Client::serves(const Resource& resource) {
  Call call = impl_->call_for("GET", "get", resource, "discover " + resource.api_version());
  call.http.path = group_path(resource);
  call.field_bytes_max.reset();
  const Result<Json> document = impl_->perform_for_object(call);
  if (!document.ok()) {
    if (document.error().code == ErrorCode::kNotFound) return false;
    return document.error();
  }
  const auto resources = document->find("resources");
  if (resources == document->end() || !resources->is_array()) {
    return Error{ErrorCode::kCorrupt, call.what + ": the answer is no list of resources"};
  }
  return std::any_of(resources->begin(), resources->end(),
                     [&](const Json& one) { return one.is_object() && text_field(one, {"name"}) == resource.plural; });
}

Result<Json> Client::openapi(const Resource& resource) {
  const Resource nothing;
  Call call = impl_->call_for("GET", "get", nothing, "read the OpenAPI document of " + resource.api_version());
  call.resource = "openapi";
  call.field_bytes_max.reset();
  call.http.path = "/openapi/v3" + group_path(resource);
  return impl_->perform_for_object(call);
}

}  // namespace lockstep::kube
