#include "operator/program.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "operator/access.h"
#include "operator/api/crd.h"
#include "operator/api/schema_gap.h"
#include "operator/control/controller.h"
#include "operator/control/event_recorder.h"
#include "operator/control/health_server.h"
#include "operator/control/informer.h"
#include "operator/control/leader_elector.h"
#include "operator/control/metrics.h"
#include "operator/exit_after_writes.h"
#include "operator/kube/client.h"
#include "operator/kube/cpprest_transport.h"
#include "operator/kube/token_source.h"
#include "operator/train/agent_client.h"
#include "operator/train/coordinator_announcer.h"
#include "operator/train/job_metrics.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_news.h"
#include "operator/train/progress_reader.h"
#include "operator/train/reconciler.h"
#include "operator/train/trim.h"
#include "runner/base/build_info.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr const char* kController = "trainjob";
constexpr const char* kCrdTrouble = "crd";  // among the troubles, which informers have by their resource's name
constexpr const char* kLease = "lockstep-operator";
constexpr const char* kDefaultNamespace = "lockstep-system";
// Losing the Lease ends the process through this signal, so that one place knows how to stop.
constexpr int kStopSignal = SIGUSR1;
constexpr int kLeadSignal = SIGUSR2;
constexpr std::chrono::milliseconds kSyncLook{200};
// What an attempt to renew the Lease may be repeated for; below the retry period.
constexpr std::chrono::milliseconds kElectionRetryFor{1'000};
constexpr std::chrono::milliseconds kElectionTimeout{5'000};
// Events are for people: a flood of them must not take the requests of reconcilers.
constexpr double kEventsPerSecond = 20.0;
constexpr int kEventsBurst = 100;
// How often the cluster's CRD is looked at while it is not the one that this operator needs.
constexpr std::chrono::seconds kCrdLook{3};
// An API server publishes a new CRD's schema within seconds; without one the operator begins all the same.
constexpr int kCrdLooksWithoutSchemaMax = 10;
constexpr size_t kFieldsNamedMax = 8;

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// No other process may have it, also not this one's successor in the same pod.
std::string make_identity() {
  std::random_device device;
  std::array<char, 17> hex{};
  std::snprintf(hex.data(), hex.size(), "%08x%08x", device(), device());
  return host_name() + "_" + hex.data();
}

// "10.96.0.1:443" of "https://10.96.0.1:443/prefix".
std::string host_of(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

api::ObjectKey job_behind(const control::Cache::Change& change) {
  return train::job_of(change.after != nullptr ? *change.after : *change.before);
}

}  // namespace

// Members are in the order of their making: whoever is used by others comes first, and is destroyed last.
struct OperatorProgram::Impl {
  Impl(OperatorOptions given, Logger log) : options(std::move(given)), logger(std::move(log)) {}

  Status connect(const Environment& environment) {
    TRY_ASSIGN(access, find_access(options.kubeconfig, options.context, environment));
    if (access.exec) {
      return Error{ErrorCode::kInvalid,
                   access.exec->where + ": an operator runs no program for credentials, which end while it goes on; " +
                       std::string(kube::kUsableCredentials)};
    }
    operator_namespace = !options.operator_namespace.empty() ? options.operator_namespace
                         : !access.ns.empty()                ? access.ns
                                                             : kDefaultNamespace;
    TRY_ASSIGN(token_key, read_token_key(options.token_key_file, operator_namespace));
    for (const std::string& warning : access.warnings) logger.warning(warning);
    // cpprestsdk reads all of the system's certificates for every connection before it asks for ours, which replace
    // them.
    if (!access.tls.authority.empty()) ::setenv("SSL_CERT_FILE", "/dev/null", 1);
    TRY_ASSIGN(transport, kube::make_cpprest_transport({.url = access.url, .tls = access.tls}));
    if (options.exit_after_writes > 0) {
      fault = std::make_shared<ExitAfterWrites>(transport, options.exit_after_writes);
      transport = fault;
    }
    if (!access.token.empty() || !access.token_file.empty()) {
      tokens = std::make_unique<kube::TokenSource>(
          kube::TokenSource::Options{.token = access.token, .file = access.token_file});
    }
    client = std::make_unique<kube::Client>(transport, base_options());
    kube::ClientOptions for_events = base_options();
    for_events.requests_per_second = kEventsPerSecond;
    for_events.burst = kEventsBurst;
    kube::ClientOptions for_election = base_options();
    for_election.retry_for = kElectionRetryFor;
    for_election.request_timeout = kElectionTimeout;
    // What is said at the end is said after `stop`: the last events, the release of the Lease.
    for_events.stop = {};
    for_election.stop = {};
    event_client = std::make_unique<kube::Client>(transport, std::move(for_events));
    election_client = std::make_unique<kube::Client>(transport, std::move(for_election));
    return {};
  }

  kube::ClientOptions base_options() {
    kube::ClientOptions client_options;
    client_options.user_agent = std::string("lockstep-operator/") + build_version();
    client_options.requests_per_second = options.qps;
    client_options.burst = options.burst;
    if (tokens) {
      client_options.bearer_token = [this] { return tokens->token(); };
      client_options.token_refused = [this] { tokens->refuse(); };
    }
    client_options.on_request = metrics.request_counter(host_of(access.url));
    client_options.stop = stop.get_token();
    return client_options;
  }

  std::unique_ptr<control::Informer> informer(const kube::Resource& resource, const std::string& ns,
                                              const std::string& selector, control::Cache::Trim trim,
                                              control::Cache::Index index = {}) {
    const std::string& what = resource.plural;
    control::Informer::Options informer_options{.ns = ns,
                                                .label_selector = selector,
                                                .field_selector = "",
                                                .trim = std::move(trim),
                                                .index = std::move(index),
                                                .logger = logger.with({{"resource", what}}),
                                                .on_trouble = [this, what](const control::ReflectorRemark& remark) {
                                                  const std::lock_guard lock(troubles_mutex);
                                                  troubles[what] = remark.line;
                                                }};
    auto made = std::make_unique<control::Informer>(*client, resource, std::move(informer_options));
    informer_names[made.get()] = what;
    return made;
  }

  void make_caches() {
    const std::string of_a_job(train::kJobLabel);
    jobs = informer(kube::train_jobs(), options.ns, "", train::trim_job);
    pods = informer(kube::pods(), options.ns, of_a_job, train::trim_pod, train::pod_index);
    services = informer(kube::services(), options.ns, of_a_job, train::trim_service);
    policies = informer(kube::network_policies(), options.ns, of_a_job, train::trim_network_policy);
    // Nodes are the cluster's: whoever may look at one namespace only does not see them.
    if (options.ns.empty()) hosts = informer(kube::nodes(), "", "", train::trim_host);
    // What a pass has assumed was planned from, by that pass or the next.
    jobs->on_change([this](const control::Cache::Change& change) {
      if (change.was_assumed) return;
      queue->add(api::key_of(change.after != nullptr ? *change.after : *change.before));
    });
    pods->on_change([this](const control::Cache::Change& change) { look_at_job_of_pod(change); });
    for (control::Informer* owned : {services.get(), policies.get()}) {
      owned->on_change([this](const control::Cache::Change& change) {
        if (change.was_assumed) return;
        if (const api::ObjectKey job = job_behind(change); !job.name.empty()) queue->add(job);
      });
    }
    if (hosts) hosts->on_change([this](const control::Cache::Change& change) { look_at_jobs_of_host(change); });
  }

  void look_at_job_of_pod(const control::Cache::Change& change) {
    const api::ObjectKey job = job_behind(change);
    if (job.name.empty()) return;
    const bool is_gone = change.after == nullptr;
    const std::chrono::milliseconds wait = pod_news.wait_after(is_gone ? *change.before : *change.after, is_gone);
    if (!change.was_assumed) queue->add_within(job, wait);
  }

  // Kubelets write their node's status all the time; only a change of what is read of it concerns anybody.
  void look_at_jobs_of_host(const control::Cache::Change& change) {
    const bool is_same = change.before != nullptr && change.after != nullptr &&
                         train::view_of_host(*change.before) == train::view_of_host(*change.after);
    if (is_same || change.before == nullptr) return;
    const std::string name = api::key_of(*change.before).name;
    for (const control::ObjectPtr& pod : pods->cache().find(train::host_index_value(name))) {
      queue->add(train::job_of(*pod));
    }
  }

  void make_reconciler() {
    progress = std::make_unique<train::ProgressReader>(train::ProgressReader::Options{
        .read = [](const std::string& ip) { return train::read_agent_status(ip, train::kStatusPort); },
        .on_report = [this](const api::ObjectKey& job) { queue->add(job); },
        .wall = {},
        .logger = logger});
    announcer = std::make_unique<train::CoordinatorAnnouncer>(train::CoordinatorAnnouncer::Options{
        .tell = [this](const std::string& ip, const std::string& token, const std::string& address) -> Status {
          // It is repeated until it is heard, and what this operator knows may be stale by then.
          if (!leads()) return Error{ErrorCode::kCancelled, "another operator leads by now"};
          return train::tell_agent_coordinator(ip, train::kStatusPort, token, address);
        },
        .logger = logger});
    job_metrics = std::make_unique<train::JobMetrics>(metrics.registry());
    train::Settings settings;
    settings.token_key = token_key;
    settings.operator_namespace = operator_namespace;
    settings.prometheus_namespace = options.prometheus_namespace;
    settings.progress_seconds = options.progress_seconds;
    reconciler = std::make_unique<train::Reconciler>(
        train::Reconciler::Parts{.client = *client,
                                 .jobs = jobs->cache(),
                                 .pods = pods->cache(),
                                 .services = services->cache(),
                                 .network_policies = policies->cache(),
                                 .hosts = hosts ? &hosts->cache() : nullptr,
                                 .events = *events,
                                 .progress = *progress,
                                 .announcer = *announcer,
                                 .metrics = *job_metrics},
        train::Reconciler::Options{
            .settings = std::move(settings),
            .tell_nodes = [](const std::string& ip, const std::string& token,
                             int nodes) { return train::tell_agent_nodes(ip, train::kStatusPort, token, nodes); },
            .now = {},
            .may_write = [this] { return leads(); },
            .logger = logger});
    controller = std::make_unique<control::Controller>(
        *queue, [this](const api::ObjectKey& key) { return reconciler->reconcile(key); },
        control::Controller::Options{.name = kController, .workers = options.workers, .logger = logger},
        &metrics.controller(kController));
  }

  bool leads() const { return elector == nullptr || elector->is_leader(); }

  Status make() {
    events = std::make_unique<control::EventRecorder>(
        *event_client, control::EventRecorder::Options{.instance = identity, .logger = logger});
    queue = std::make_unique<control::Workqueue>(metrics.queue_options(kController));
    queue_registration = metrics.watch_queue(kController, *queue);
    make_caches();
    make_reconciler();
    if (options.leader_elect) make_elector();
    TRY_ASSIGN(server, control::HealthServer::start({.port = options.metrics_port,
                                                     .metrics = [this] { return metrics.text(); },
                                                     .healthy = {},
                                                     .ready = readiness()}));
    return {};
  }

  void make_elector() {
    control::LeaderElector::Options election;
    election.election.identity = identity;
    election.election.lease = {.ns = operator_namespace, .name = kLease};
    election.on_started = [this] {
      logger.info("leading", {{"lease", kLease}, {"identity", identity}});
      metrics.set_leader(kLease, true);
      ::kill(::getpid(), kLeadSignal);
    };
    election.on_stopped = [this](const std::string& why) {
      metrics.set_leader(kLease, false);
      logger.warning("no longer leading", {{"why", why}});
      ::kill(::getpid(), kStopSignal);
    };
    election.on_new_leader = [this](const std::string& leader) { logger.info("leader", {{"identity", leader}}); };
    election.logger = logger;
    metrics.set_leader(kLease, false);
    elector = std::make_unique<control::LeaderElector>(*election_client, std::move(election));
  }

  std::vector<control::HealthCheck> readiness() {
    std::vector<control::HealthCheck> checks;
    checks.push_back({.name = "crd", .trouble = [this]() -> std::optional<std::string> {
                        const std::lock_guard lock(troubles_mutex);
                        const auto why = troubles.find(kCrdTrouble);
                        return why == troubles.end() ? std::nullopt : std::optional(why->second);
                      }});
    for (control::Informer* informer : informers()) {
      const std::string what = informer_names.at(informer);
      checks.push_back({.name = what, .trouble = [this, informer, what]() -> std::optional<std::string> {
                          if (informer->cache().synced()) return std::nullopt;
                          const std::lock_guard lock(troubles_mutex);
                          const auto why = troubles.find(what);
                          return "no list of " + what + " yet" + (why == troubles.end() ? "" : ": " + why->second);
                        }});
    }
    return checks;
  }

  std::vector<control::Informer*> informers() {
    std::vector<control::Informer*> all;
    for (const auto* informer : {&jobs, &pods, &services, &policies, &hosts}) {
      if (*informer) all.push_back(informer->get());
    }
    return all;
  }

  // SIGTERM or SIGINT: 0. The end of the leadership: 1, so that it shows in the pod's restarts.
  int run() {
    logger.info("starting", {{"version", build_version()},
                             {"access", access.source},
                             {"server", access.url},
                             {"namespace", options.ns.empty() ? "(all)" : options.ns},
                             {"identity", identity}});
    for (control::Informer* informer : informers()) informer->start();
    if (elector) {
      elector->start();
    } else {
      begin();
    }
    const int signal = wait_for_the_end();
    logger.info("stopping", {{"signal", signal}});
    end();
    return signal == kStopSignal ? static_cast<int>(ExitCode::kCrash) : static_cast<int>(ExitCode::kDone);
  }

  // Reconcilers see whole caches only: a pod that is not there yet would be made again, or counted as lost.
  void begin() {
    starter = std::jthread([this](const std::stop_token& ended) {
      for (control::Informer* informer : informers()) {
        while (!ended.stop_requested() && !informer->wait_until_synced(kSyncLook)) continue;
      }
      wait_for_crd(ended);
      if (ended.stop_requested()) return;
      logger.info("caches are filled; reconciling", {{"jobs", jobs->cache().size()}, {"workers", options.workers}});
      controller->start();
    });
  }

  // An API server drops the fields of a status that its CRD does not know: what a policy has decided would be
  // forgotten, and done again. So an operator with an older CRD waits, and says what is missing.
  void wait_for_crd(const std::stop_token& ended) {
    std::mutex mutex;
    std::condition_variable_any wake;
    for (int looks = 1; !ended.stop_requested(); ++looks) {
      const Result<std::string> trouble = look_at_crd();
      if (trouble.ok()) {
        const std::lock_guard lock(troubles_mutex);
        if (trouble->empty()) {
          troubles.erase(kCrdTrouble);
          return;
        }
        if (std::exchange(troubles[kCrdTrouble], *trouble) != *trouble) logger.error(*trouble);
      } else if (trouble.error().code != ErrorCode::kRetry && looks >= kCrdLooksWithoutSchemaMax) {
        logger.warning("cannot tell whether the CRD is the one that this operator needs: " + trouble.error().message);
        return;
      }
      std::unique_lock lock(mutex);
      wake.wait_for(lock, ended, kCrdLook, [] { return false; });
    }
  }

  // What is wrong with the cluster's CRD, in words; empty when nothing is.
  Result<std::string> look_at_crd() {
    TRY_ASSIGN(const Json document, client->openapi(kube::train_jobs()));
    const Json* const theirs = api::schema_of_kind(document, api::kGroup, api::kKind);
    if (theirs == nullptr) return Error{ErrorCode::kNotFound, "the server's OpenAPI document has no TrainJob"};
    const std::vector<std::string> lacking = api::fields_lacking(api::trainjob_schema(), *theirs);
    return lacking.empty() ? std::string() : older_crd(lacking);
  }

  static std::string older_crd(const std::vector<std::string>& lacking) {
    std::string text = "the CRD trainjobs.lockstep.dev in the cluster is older than this operator (";
    text.append(build_version()).append("): it does not have ");
    for (size_t i = 0; i < std::min(lacking.size(), kFieldsNamedMax); ++i) {
      text.append(i == 0 ? "" : ", ").append(lacking[i]);
    }
    if (lacking.size() > kFieldsNamedMax) {
      text.append(" and ").append(std::to_string(lacking.size() - kFieldsNamedMax)).append(" more fields");
    }
    return text.append(
        "; nothing is done about TrainJobs until it is brought up to date: helm upgrade with crds.enabled, or kubectl "
        "apply --server-side --force-conflicts -f manifests/base/crd.yaml");
  }

  int wait_for_the_end() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGINT, kStopSignal, kLeadSignal}) sigaddset(&signals, signal);
    while (true) {
      int signal = 0;
      if (sigwait(&signals, &signal) != 0) continue;
      if (signal != kLeadSignal) return signal;
      begin();
    }
  }

  // Workers first, then the Lease: nobody else begins while something of ours may still be written.
  void end() {
    if (starter.joinable()) {
      starter.request_stop();
      starter.join();
    }
    stop.request_stop();
    controller->stop_and_join();
    progress.reset();
    announcer.reset();
    if (elector) {
      // The Lease is released by a client whose calls are not ended yet.
      elector->stop_and_join();
    }
    for (control::Informer* informer : informers()) informer->stop_and_join();
    events.reset();
    if (fault) logger.info("counted writes", {{"writes", fault->answered()}});
    transport->shut_down();
  }

  const OperatorOptions options;
  const Logger logger;
  const std::string identity = make_identity();
  std::stop_source stop;  // ends waits of the clients
  kube::ServerAccess access;
  std::string token_key;
  std::string operator_namespace;
  control::Metrics metrics;
  std::unique_ptr<kube::TokenSource> tokens;
  std::shared_ptr<ExitAfterWrites> fault;
  std::shared_ptr<kube::HttpTransport> transport;
  std::unique_ptr<kube::Client> client;
  std::unique_ptr<kube::Client> event_client;
  std::unique_ptr<kube::Client> election_client;
  std::unique_ptr<control::EventRecorder> events;
  std::unique_ptr<control::Workqueue> queue;
  control::Metrics::Registration queue_registration;
  std::map<const control::Informer*, std::string> informer_names;  // not changed after make()
  std::mutex troubles_mutex;
  std::map<std::string, std::string> troubles;  // protected by troubles_mutex; by resource, the newest
  train::PodNews pod_news;                      // of the pods' informer's thread
  std::unique_ptr<control::Informer> jobs, pods, services, policies, hosts;
  std::unique_ptr<train::ProgressReader> progress;
  std::unique_ptr<train::JobMetrics> job_metrics;
  std::unique_ptr<control::LeaderElector> elector;
  std::unique_ptr<train::CoordinatorAnnouncer> announcer;
  std::unique_ptr<train::Reconciler> reconciler;
  std::unique_ptr<control::Controller> controller;
  std::unique_ptr<control::HealthServer> server;
  std::jthread starter;
};

OperatorProgram::OperatorProgram(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OperatorProgram::~OperatorProgram() = default;

Result<std::unique_ptr<OperatorProgram>> OperatorProgram::make(const OperatorOptions& options,
                                                               const Environment& environment, Logger logger) {
  auto impl = std::make_unique<Impl>(options, std::move(logger));
  TRY(impl->connect(environment));
  TRY(impl->make());
  return std::unique_ptr<OperatorProgram>(new OperatorProgram(std::move(impl)));
}

int OperatorProgram::run() { return impl_->run(); }

}  // namespace lockstep
