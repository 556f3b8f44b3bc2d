#include "operator/control/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include "operator/control/process_metrics.h"
#include "tests/operator/control/test_clock.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const api::ObjectKey kA{"ns", "a"};

bool has(const Metrics& metrics, const std::string& line) {
  return ("\n" + metrics.text()).find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, a_controllers_series_are_there_from_the_start) {
  Metrics metrics("widget");
  for (const char* line : {R"(controller_runtime_reconcile_total{controller="widget",result="success"} 0)",
                           R"(controller_runtime_reconcile_total{controller="widget",result="error"} 0)",
                           R"(controller_runtime_reconcile_total{controller="widget",result="requeue_after"} 0)",
                           R"(controller_runtime_reconcile_errors_total{controller="widget"} 0)",
                           R"(controller_runtime_reconcile_panics_total{controller="widget"} 0)",
                           R"(controller_runtime_active_workers{controller="widget"} 0)",
                           R"(controller_runtime_max_concurrent_reconciles{controller="widget"} 0)",
                           R"(controller_runtime_reconcile_time_seconds_bucket{controller="widget",le="0.005"} 0)",
                           R"(controller_runtime_reconcile_time_seconds_bucket{controller="widget",le="60"} 0)",
                           "# TYPE controller_runtime_reconcile_time_seconds histogram"}) {
    EXPECT_TRUE(has(metrics, line)) << line << "\n" << metrics.text();
  }
}

TEST(Metrics, reconciles_are_counted_by_their_outcome) {
  Metrics metrics("widget");
  for (const ReconcileOutcome outcome : {ReconcileOutcome::kSuccess, ReconcileOutcome::kError,
                                         ReconcileOutcome::kRequeueAfter, ReconcileOutcome::kCancelled}) {
    metrics.reconcile_begins();
    EXPECT_TRUE(has(metrics, R"(controller_runtime_active_workers{controller="widget"} 1)"));
    metrics.reconcile_ends(outcome, milliseconds(30));
  }
  for (const char* result : {"success", "error", "requeue_after"}) {
    EXPECT_TRUE(has(
        metrics, "controller_runtime_reconcile_total{controller=\"widget\",result=\"" + std::string(result) + "\"} 1"));
  }
  EXPECT_TRUE(has(metrics, R"(controller_runtime_reconcile_errors_total{controller="widget"} 1)"));
  EXPECT_TRUE(has(metrics, R"(controller_runtime_reconcile_time_seconds_count{controller="widget"} 3)"));
  EXPECT_TRUE(has(metrics, R"(controller_runtime_reconcile_time_seconds_bucket{controller="widget",le="0.025"} 0)"));
  EXPECT_TRUE(has(metrics, R"(controller_runtime_reconcile_time_seconds_bucket{controller="widget",le="0.05"} 3)"));
}

TEST(Metrics, a_queues_figures_are_read_at_every_scrape) {
  Metrics metrics("widget");
  TestClock clock;
  Workqueue::Options options = metrics.queue_options();
  options.now = clock.source();
  Workqueue queue(options);
  metrics.watch_queue(queue);
  queue.add(kA);
  queue.add({"ns", "b"});
  queue.add_after({"ns", "c"}, seconds(60));
  clock.turn(seconds(2));
  ASSERT_EQ(queue.try_get(), kA);
  clock.turn(seconds(5));
  const std::string labels = R"({name="widget",controller="widget"})";
  const std::string other = R"({controller="widget",name="widget"})";
  const auto has_value = [&](const std::string& name, const std::string& value) {
    return has(metrics, name + labels + " " + value) || has(metrics, name + other + " " + value);
  };
  EXPECT_TRUE(has_value("workqueue_depth", "1")) << metrics.text();
  EXPECT_TRUE(has_value("workqueue_adds_total", "3"));
  EXPECT_TRUE(has_value("workqueue_retries_total", "1"));
  EXPECT_TRUE(has_value("workqueue_unfinished_work_seconds", "5"));
  EXPECT_TRUE(has_value("workqueue_longest_running_processor_seconds", "5"));
  EXPECT_TRUE(has_value("workqueue_queue_duration_seconds_sum", "2"));
  EXPECT_TRUE(has_value("workqueue_work_duration_seconds_count", "0"));
  queue.done(kA);
  EXPECT_TRUE(has_value("workqueue_work_duration_seconds_sum", "5"));
  EXPECT_TRUE(has_value("workqueue_unfinished_work_seconds", "0"));
}

TEST(Metrics, requests_are_counted_by_code_method_and_host) {
  Metrics metrics("widget");
  const auto count = metrics.request_counter("10.0.0.1:443");
  struct Case {
    const char* verb;
    int status;
    const char* code;
    const char* method;
  };
  for (const Case& c :
       {Case{"create", 201, "201", "POST"}, Case{"update", 409, "409", "PUT"}, Case{"apply", 200, "200", "PATCH"},
        Case{"patch", 422, "422", "PATCH"}, Case{"delete", 404, "404", "DELETE"}, Case{"list", 0, "<error>", "GET"},
        Case{"watch", 200, "200", "GET"}, Case{"get", 500, "500", "GET"}}) {
    count({.verb = c.verb, .resource = "pods", .status = c.status, .duration = std::chrono::duration<double>(0.02)});
    const std::string line = std::string("rest_client_requests_total{code=\"") + c.code +
                             "\",host=\"10.0.0.1:443\",method=\"" + c.method + "\"} 1";
    EXPECT_TRUE(has(metrics, line)) << line << metrics.text();
  }
  EXPECT_TRUE(has(metrics, R"(rest_client_request_duration_seconds_count{host="10.0.0.1:443",verb="PATCH"} 2)"));
  EXPECT_TRUE(
      has(metrics, R"(rest_client_request_duration_seconds_bucket{host="10.0.0.1:443",verb="PUT",le="0.025"} 1)"));
}

TEST(Metrics, says_who_leads) {
  Metrics metrics("widget");
  metrics.set_leader("lock", false);
  EXPECT_TRUE(has(metrics, R"(leader_election_master_status{name="lock"} 0)"));
  metrics.set_leader("lock", true);
  EXPECT_TRUE(has(metrics, R"(leader_election_master_status{name="lock"} 1)"));
}

TEST(Metrics, other_rooms_add_their_own) {
  Metrics metrics("widget");
  const auto registry = std::make_shared<prometheus::Registry>();
  prometheus::BuildCounter().Name("widgets_total").Help("Widgets.").Register(*registry).Add({}).Increment(3);
  metrics.add(registry);
  EXPECT_TRUE(has(metrics, "widgets_total 3"));
}

TEST(ProcessMetrics, tell_of_this_process) {
  Metrics metrics("widget");
  const std::string text = metrics.text();
  for (const char* name : {"process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes",
                           "process_virtual_memory_bytes", "process_start_time_seconds"}) {
    const size_t at = text.find("\n" + std::string(name) + " ");
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GE(std::strtod(text.c_str() + at + 1 + std::string(name).size(), nullptr), 0.0) << name;
  }
  std::map<std::string, double> values;
  for (const auto& family : ProcessMetrics().Collect()) {
    values[family.name] = family.metric[0].gauge.value + family.metric[0].counter.value;
  }
  EXPECT_GT(values["process_resident_memory_bytes"], 1e6);
  EXPECT_GE(values["process_open_fds"], 3);
  const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(values["process_start_time_seconds"], now, 3600);
}

TEST(ProcessStat, is_read_past_a_name_with_spaces_and_parentheses) {
  const ProcessFigures figures = parse_process_stat(
      "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 150 0 0 20 0 8 0 7777 4096000 25 18446744073709551615", 100, 4096);
  EXPECT_DOUBLE_EQ(figures.cpu_seconds, 4.0);
  EXPECT_DOUBLE_EQ(figures.start_ticks, 7777);
  EXPECT_DOUBLE_EQ(figures.virtual_bytes, 4096000);
  EXPECT_DOUBLE_EQ(figures.resident_bytes, 25 * 4096);
}

TEST(ProcessStat, gives_zeros_for_a_text_of_another_form) {
  for (const char* line : {"", "42 (a", "42 (a) S 1 2"}) {
    EXPECT_EQ(parse_process_stat(line, 100, 4096).resident_bytes, 0) << line;
  }
}

}  // namespace
}  // namespace lockstep::control
