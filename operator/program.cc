#include "operator/program.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "operator/access.h"
#include "operator/caches.h"
#include "operator/connection.h"
#include "operator/control/controller.h"
#include "operator/control/event_recorder.h"
#include "operator/control/health_server.h"
#include "operator/control/leader_elector.h"
#include "operator/control/metrics.h"
#include "operator/crd_check.h"
#include "operator/train/agent_client.h"
#include "operator/train/coordinator_announcer.h"
#include "operator/train/job_metrics.h"
#include "operator/train/object_names.h"
#include "operator/train/progress_reader.h"
#include "operator/train/reconciler.h"
#include "runner/base/build_info.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr const char* kController = "trainjob";
constexpr const char* kLease = "lockstep-operator";
// Losing the Lease ends the process through this signal, so that one place knows how to stop.
constexpr int kStopSignal = SIGUSR1;
constexpr int kLeadSignal = SIGUSR2;

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// A unique identity: no other process may have it, not even the next one in the same pod.
std::string make_identity() {
  std::random_device device;
  std::array<char, 17> hex{};
  std::snprintf(hex.data(), hex.size(), "%08x%08x", device(), device());
  return host_name() + "_" + hex.data();
}

}  // namespace

// Members are in the order in which they are made: a member that others use comes first and is destroyed last.
struct OperatorProgram::Impl {
  Impl(OperatorOptions given, Logger log) : options(std::move(given)), logger(std::move(log)) {}

  void make_reconciler() {
    progress = std::make_unique<train::ProgressReader>(
        train::ProgressReader::Options{.read = train::read_agent_status,
                                       .on_report = [this](const api::ObjectKey& job) { queue->add(job); },
                                       .wall = {},
                                       .logger = logger});
    announcer = std::make_unique<train::CoordinatorAnnouncer>(
        train::CoordinatorAnnouncer::Options{.send = [this](const std::string& ip, int port, const std::string& token,
                                                            const std::string& address) -> Status {
                                               // The request is repeated until the agent answers; by then another
                                               // operator, which knows more, may lead.
                                               if (!leads())
                                                 return Error{ErrorCode::kCancelled, "another operator leads by now"};
                                               return train::send_coordinator_address(ip, port, token, address);
                                             },
                                             .logger = logger});
    job_metrics = std::make_shared<train::JobMetrics>();
    metrics.add(job_metrics);
    train::Settings settings;
    settings.token_key = token_key;
    settings.operator_namespace = connection->operator_namespace;
    settings.prometheus_namespace = options.prometheus_namespace;
    settings.sets_fs_group = options.fs_group;
    settings.progress_seconds = options.progress_seconds;
    if (!options.agent_image.empty()) settings.agent_image = options.agent_image;
    reconciler =
        std::make_unique<train::Reconciler>(train::Reconciler::Context{.client = *connection->client,
                                                                       .jobs = caches->jobs(),
                                                                       .pods = caches->pods(),
                                                                       .services = caches->services(),
                                                                       .network_policies = caches->network_policies(),
                                                                       .nodes = caches->nodes(),
                                                                       .optional = caches->optional(),
                                                                       .events = *events,
                                                                       .progress = *progress,
                                                                       .announcer = *announcer,
                                                                       .metrics = *job_metrics},
                                            train::Reconciler::Options{.settings = std::move(settings),
                                                                       .send_num_nodes = train::send_num_nodes,
                                                                       .now = {},
                                                                       .may_write = [this] { return leads(); },
                                                                       .logger = logger});
    controller = std::make_unique<control::Controller>(
        *queue, [this](const api::ObjectKey& key) { return reconciler->reconcile(key); },
        control::Controller::Options{.name = kController, .workers = options.workers, .logger = logger}, &metrics);
  }

  bool leads() const { return elector == nullptr || elector->is_leader(); }

  Status make(const Environment& environment) {
    TRY_ASSIGN(connection, Connection::make(options, environment, metrics, logger));
    TRY_ASSIGN(token_key, read_token_key(options.token_key_file, connection->operator_namespace));
    events = std::make_unique<control::EventRecorder>(
        *connection->event_client, control::EventRecorder::Options{.instance = identity, .logger = logger});
    queue = std::make_unique<control::Workqueue>(metrics.queue_options());
    metrics.watch_queue(*queue);
    caches = std::make_unique<Caches>(*connection->client, *queue, options.ns, logger);
    crd_check = std::make_unique<CrdCheck>(*connection->client, logger);
    make_reconciler();
    if (options.leader_elect) make_elector();
    std::vector<control::HealthCheck> ready = caches->readiness();
    ready.insert(ready.begin(), {.name = "crd", .trouble = [this] { return crd_check->trouble(); }});
    TRY_ASSIGN(server, control::start_health_server({.port = options.metrics_port,
                                                     .metrics = [this] { return metrics.text(); },
                                                     .ready = std::move(ready)}));
    return {};
  }

  void make_elector() {
    control::LeaderElector::Options election;
    election.election.identity = identity;
    election.election.lease = {.ns = connection->operator_namespace, .name = kLease};
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
    elector = std::make_unique<control::LeaderElector>(*connection->election_client, std::move(election));
  }

  // SIGTERM or SIGINT: 0. The end of the leadership: 1, so that it shows in the pod's restarts.
  int run() {
    logger.info("starting", {{"version", build_version()},
                             {"access", connection->access.source},
                             {"server", connection->access.url},
                             {"namespace", options.ns.empty() ? "(all)" : options.ns},
                             {"identity", identity}});
    caches->start();
    starter = std::jthread([this](const std::stop_token& ended) { prepare(ended); });
    const int signal = wait_for_the_end();
    logger.info("stopping", {{"signal", signal}});
    end();
    return signal == kStopSignal ? code_of(ExitCode::kCrash) : code_of(ExitCode::kDone);
  }

  // Reconcilers see whole caches only: a pod that is not there yet would be made again, or counted as lost. An operator
  // that is not ready for work does not stand for election either: it would lead and do nothing.
  void prepare(const std::stop_token& ended) {
    caches->wait_until_synced(ended);
    crd_check->wait(ended);
    if (ended.stop_requested()) return;
    elector ? elector->start() : begin();
  }

  void begin() {
    logger.info("caches are filled; reconciling", {{"jobs", caches->jobs().size()}, {"workers", options.workers}});
    controller->start();
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

  // Workers first, then the Lease: no other operator begins while this one may still be writing.
  void end() {
    starter.request_stop();
    starter.join();
    connection->stop.request_stop();
    controller->stop_and_join();
    progress.reset();
    announcer.reset();
    if (elector) {
      // `connection->stop` does not end the calls of the client that releases the Lease.
      elector->stop_and_join();
    }
    caches->stop_and_join();
    events.reset();
    connection->transport->shut_down();
  }

  const OperatorOptions options;
  const Logger logger;
  const std::string identity = make_identity();
  std::string token_key;
  control::Metrics metrics{kController};
  std::unique_ptr<Connection> connection;
  std::unique_ptr<control::EventRecorder> events;
  std::unique_ptr<control::Workqueue> queue;
  std::unique_ptr<Caches> caches;
  std::unique_ptr<CrdCheck> crd_check;
  std::unique_ptr<train::ProgressReader> progress;
  std::shared_ptr<train::JobMetrics> job_metrics;
  std::unique_ptr<control::LeaderElector> elector;
  std::unique_ptr<train::CoordinatorAnnouncer> announcer;
  std::unique_ptr<train::Reconciler> reconciler;
  std::unique_ptr<control::Controller> controller;
  std::unique_ptr<HttpServer> server;  // reads the queue's figures
  std::jthread starter;
};

OperatorProgram::OperatorProgram(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OperatorProgram::~OperatorProgram() = default;

Result<std::unique_ptr<OperatorProgram>> OperatorProgram::make(const OperatorOptions& options,
                                                               const Environment& environment, Logger logger) {
  auto impl = std::make_unique<Impl>(options, std::move(logger));
  TRY(impl->make(environment));
  return std::unique_ptr<OperatorProgram>(new OperatorProgram(std::move(impl)));
}

int OperatorProgram::run() { return impl_->run(); }

}  // namespace lockstep
