// What the golden cases do not show: numbers that grow over many steps, tables, and objects that nobody would write.
#include <gtest/gtest.h>

#include <functional>

#include "operator/api/trainjob.h"
#include "operator/train/bookkeeping.h"
#include "operator/train/desired_env.h"
#include "operator/train/desired_network_policy.h"
#include "operator/train/desired_pod.h"
#include "operator/train/desired_service.h"
#include "operator/train/failure_policy.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_group.h"
#include "operator/train/pod_template.h"
#include "operator/train/pod_view.h"
#include "operator/train/status.h"
#include "operator/train/trim.h"
#include "runner/base/json.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/launch/world.h"

namespace lockstep::train {
namespace {

using api::RuleAction;

PodEnd exit_with(int code, int node_rank = 1) {
  PodEnd end;
  end.kind = EndKind::kExit;
  end.node_rank = node_rank;
  end.exit_code = code;
  end.reason = exit_reason(code);
  return end;
}

TEST(FailurePolicy, a_changed_configuration_is_fixable_by_a_spec_change_and_another_usage_error_is_not) {
  PodEnd end = exit_with(2);
  end.reason = kConfigurationChanged;
  Bookkeeping book;
  const FailureOutcome fixable = apply_failure_policy({}, {end}, {.now = 1000}, book);
  ASSERT_TRUE(fixable.failure.has_value());
  EXPECT_TRUE(fixable.is_fixable_by_spec_change);
  EXPECT_EQ(fixable.failure->reason, "ConfigurationChanged");
  const FailureOutcome final = apply_failure_policy({}, {exit_with(2)}, {.now = 1000}, book);
  ASSERT_TRUE(final.failure.has_value());
  EXPECT_FALSE(final.is_fixable_by_spec_change);
}

TEST(FailurePolicy, a_commit_is_known_until_the_spec_that_shapes_the_pods_changes) {
  api::TrainJobSpec spec;
  spec.trainer.image = "runner:1";
  spec.trainer.args = {"run", "sasrec"};
  Bookkeeping book;
  EXPECT_FALSE(has_committed(spec, book));
  note_commit(spec, book);
  book = bookkeeping_from_json(to_json(book));  // another operator goes on
  EXPECT_TRUE(has_committed(spec, book));

  api::TrainJobSpec resumed = spec;  // what may change while it runs, or does not shape the pods
  resumed.suspend = true;
  resumed.trainer.num_nodes = 7;
  resumed.restart_policy.max_restarts = 3;
  EXPECT_TRUE(has_committed(resumed, book));

  const std::vector<std::function<void(api::Trainer&)>> edits = {
      [](api::Trainer& t) { t.image = "runner:2"; },
      [](api::Trainer& t) { t.command = {"x"}; },
      [](api::Trainer& t) { t.args.push_back("--lr"); },
      [](api::Trainer& t) {
        t.env = {{{"name", "A"}, {"value", "1"}}};
      },
      [](api::Trainer& t) { t.num_proc_per_node = 2; },
      [](api::Trainer& t) {
        t.resources_per_node = {{"limits", {{"memory", "1Gi"}}}};
      },
      [](api::Trainer& t) {
        t.pod_template = {{"spec", {{"hostNetwork", true}}}};
      }};
  for (size_t i = 0; i < edits.size(); ++i) {
    api::TrainJobSpec edited = spec;
    edits[i](edited.trainer);
    EXPECT_FALSE(has_committed(edited, book)) << "edit " << i;
    EXPECT_EQ(apply_failure_policy(edited, {exit_with(3)}, {.now = 1}, book).failure->reason, "DataUnreadable") << i;
  }
  EXPECT_FALSE(apply_failure_policy(spec, {exit_with(3)}, {.now = 1}, book).failure.has_value());
}

// The newest step of a worker may be that of the checkpoint which it began from.
TEST(FailurePolicy, the_last_words_of_a_pod_tell_of_a_commit_only_when_their_step_is_a_new_one) {
  const auto fails = [](std::optional<int64_t> step, int64_t known_step, int64_t furthest_step) {
    Bookkeeping book;
    book.furthest_step = furthest_step;
    PodEnd end = exit_with(3);
    end.step = step;
    return apply_failure_policy({}, {end}, {.known_step = known_step, .now = 1}, book).failure.has_value();
  };
  EXPECT_TRUE(fails(std::nullopt, -1, -1));
  EXPECT_TRUE(fails(0, -1, -1));
  EXPECT_FALSE(fails(1, -1, -1));
  EXPECT_TRUE(fails(500, 500, -1));
  EXPECT_TRUE(fails(500, -1, 500));
  EXPECT_FALSE(fails(501, 500, 500));
}

TEST(FailurePolicy, a_usage_error_that_comes_again_and_again_after_a_commit_ends_the_job) {
  Bookkeeping book;
  note_commit({}, book);
  int ends = 0;
  std::optional<JobFailure> failure;
  bool was_gang = false;
  while (!failure && ends < 20) {
    const FailureOutcome outcome =
        apply_failure_policy({}, {exit_with(2)}, {.known_step = 7, .now = 1000 + 400 * ends}, book);
    was_gang = was_gang || outcome.is_gang;
    failure = outcome.failure;
    ++ends;
  }
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->reason, "NoProgress");
  EXPECT_EQ(ends, 4);
  EXPECT_TRUE(was_gang) << "the last try is a restart of all pods";
}

// Agents of an earlier version end the whole run when the workers of one node crash again and again.
TEST(FailurePolicy, of_many_pods_that_ended_with_the_run_only_the_cause_is_counted_and_its_node_avoided) {
  for (const bool cause_is_first : {true, false}) {
    std::vector<PodEnd> ends;
    for (int node_rank = 0; node_rank < 8; ++node_rank) {
      PodEnd end = exit_with(12, node_rank);
      end.node = "node-" + std::to_string(node_rank);
      end.job_ended = true;
      end.time = 100;
      ends.push_back(end);
    }
    ends[3].rank = 3;
    ends[3].time = cause_is_first ? 99 : 101;
    Bookkeeping together;
    const FailureOutcome outcome = apply_failure_policy({}, ends, {.now = 200}, together);
    EXPECT_FALSE(outcome.failure.has_value());
    EXPECT_EQ(outcome.replacements.size(), 8U);
    Bookkeeping one_by_one;  // as the pods' ends become known
    for (const PodEnd& end : ends) {
      EXPECT_FALSE(apply_failure_policy({}, {end}, {.now = 200}, one_by_one).failure.has_value());
    }
    for (const Bookkeeping& book : {together, one_by_one}) {
      ASSERT_EQ(book.counted.size(), 1U);
      EXPECT_EQ(book.counted.begin()->second, 1);
      ASSERT_EQ(book.avoided.size(), 1U);
      EXPECT_EQ(book.avoided.begin()->first, "node-3");
    }
  }
}

TEST(FailurePolicy, a_run_that_ends_again_and_again_without_a_cause_in_any_pod_ends_the_job) {
  Bookkeeping book;
  int times = 0;
  for (bool has_failed = false; !has_failed && times < 20; ++times) {
    std::vector<PodEnd> ends = {exit_with(11, 0), exit_with(11, 1)};
    for (PodEnd& end : ends) end.job_ended = true;
    has_failed = apply_failure_policy({}, ends, {.known_step = 7, .now = 1000 + 400 * times}, book).failure.has_value();
  }
  EXPECT_EQ(times, 4);
  EXPECT_TRUE(book.counted.empty());
}

TEST(FailurePolicy, a_rule_about_exit_codes_is_about_the_trainer_s) {
  api::TrainJobSpec spec;
  spec.restart_policy.rules = {{.exit_codes = {5}, .action = RuleAction::kFail}};
  PodEnd end = exit_with(5);
  EXPECT_EQ(judge(end, spec, true).action, RuleAction::kFail);
  end.is_of_trainer = false;
  EXPECT_EQ(judge(end, spec, true).action, RuleAction::kReplacePod);
  spec.restart_policy.rules = {{.pod_reasons = {"OOMKilled"}, .action = RuleAction::kFail}};
  end.pod_reasons = {"OOMKilled"};
  EXPECT_EQ(judge(end, spec, true).action, RuleAction::kFail) << "its reasons are the pod's";
}

TEST(FailurePolicy, another_program_s_exit_codes_use_up_no_budget_but_that_of_crashes) {
  api::TrainJobSpec spec;
  spec.trainer.launcher = api::Launcher::kNone;
  for (const int code : {2, 3, 5, 10, 12, 13}) {
    PodEnd end = exit_with(code);
    end.reason = "Crash";
    end.node = "node-b";
    Bookkeeping book;
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(apply_failure_policy(spec, {end}, {.now = 1000 + i}, book).failure.has_value()) << code;
    }
    EXPECT_EQ(book.out_of_memory, 0) << code;
    EXPECT_TRUE(book.avoided.empty()) << code;
    EXPECT_EQ(book.counted.begin()->second, 3) << code;
  }
}

TEST(FailurePolicy, a_pod_that_fills_its_disk_again_and_again_ends_the_job) {
  PodEnd end;
  end.kind = EndKind::kOverLimit;
  end.reason = "Evicted";
  Bookkeeping book;
  int ends = 0;
  for (bool has_failed = false; !has_failed && ends < 20; ++ends) {
    has_failed = apply_failure_policy({}, {end}, {.known_step = 7, .now = 1000 + 400 * ends}, book).failure.has_value();
  }
  EXPECT_EQ(ends, 4);
}

TEST(FailurePolicy, avoids_a_node_whose_kubelet_refuses_two_pods_within_the_window) {
  api::TrainJobSpec spec;
  spec.restart_policy.window_seconds = 3600;
  PodEnd end;
  end.kind = EndKind::kRefused;
  end.reason = "OutOfcpu";
  Bookkeeping book;
  const auto avoids = [&](const std::string& node, api::UnixSeconds now) {
    end.node = node;
    const FailureOutcome outcome = apply_failure_policy(spec, {end}, {.now = now}, book);
    EXPECT_FALSE(outcome.replacements.front().verdict.is_counted);
    return outcome.replacements.front().verdict.avoids_node;
  };
  EXPECT_FALSE(avoids("node-b", 1000));
  EXPECT_FALSE(avoids("node-c", 1001));
  EXPECT_TRUE(avoids("node-b", 1002));
  EXPECT_FALSE(avoids("node-b", 10'000)) << "the first two are older than the window";
  for (int i = 0; i < 100; ++i) avoids("node-" + std::to_string(i), 10'001 + i);
  EXPECT_LE(book.refusals.size(), kAvoidedNodesMax);
}

// deletionTimestamp is the API server's; this operator's clock is a minute ahead of it.
TEST(PodView, is_overdue_by_the_clock_of_who_looks) {
  PodView pod;
  EXPECT_FALSE(is_overdue(pod, 5000));
  constexpr api::UnixSeconds kSeen = 1060;  // when the API server says 1000
  pod.meta.deletion_time = 1000 + 30;
  pod.deletion_grace_seconds = 30;
  pod.deletion_seen_at = kSeen;
  EXPECT_FALSE(is_overdue(pod, kSeen)) << "it has just been asked to end";
  EXPECT_FALSE(is_overdue(pod, kSeen + 39));
  EXPECT_TRUE(is_overdue(pod, kSeen + 40));
  EXPECT_EQ(overdue_at(pod), kSeen + 40);
  pod.deletion_seen_at = 940;  // a clock that is a minute behind
  EXPECT_FALSE(is_overdue(pod, 1039));
  EXPECT_TRUE(is_overdue(pod, 1040));
  pod.deletion_seen_at = 0;
  EXPECT_TRUE(is_overdue(pod, 1040));
}

TEST(FailurePolicy, peers_that_never_find_each_other_end_the_job_but_not_while_one_has_not_started) {
  const auto fails = [](bool waits_for_pods) {
    Bookkeeping book;
    bool has_failed = false;
    for (int i = 0; i < 10 && !has_failed; ++i) {
      const FailureInput input{.known_step = 7, .now = 1000 + i * 300, .waits_for_pods = waits_for_pods};
      has_failed = apply_failure_policy({}, {exit_with(10)}, input, book).failure.has_value();
    }
    return has_failed;
  };
  EXPECT_TRUE(fails(false));
  EXPECT_FALSE(fails(true));
}

TEST(FailurePolicy, allows_exactly_max_restarts_in_a_window) {
  api::TrainJobSpec spec;
  spec.trainer.launcher = api::Launcher::kTorchrun;
  spec.restart_policy = {.max_restarts = 5, .window_seconds = 3600};
  Bookkeeping book;
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(apply_failure_policy(spec, {exit_with(1)}, {.now = 1000 + i}, book).failure.has_value()) << i;
  }
  const FailureOutcome sixth = apply_failure_policy(spec, {exit_with(1)}, {.now = 1005}, book);
  ASSERT_TRUE(sixth.failure.has_value());
  EXPECT_EQ(sixth.failure->reason, "TooManyRestarts");
  EXPECT_NE(sixth.failure->message.find("failure 6 within 3600 s"), std::string::npos) << sixth.failure->message;
}

TEST(FailurePolicy, a_lowered_max_restarts_ends_nothing_before_the_next_end_that_counts) {
  api::TrainJobSpec spec;
  spec.restart_policy = {.max_restarts = 5, .window_seconds = 3600};
  spec.restart_policy.no_progress_restarts = 100;
  Bookkeeping book;
  for (int i = 0; i < 3; ++i) apply_failure_policy(spec, {exit_with(12)}, {.now = 1000 + i}, book);
  spec.restart_policy.max_restarts = 2;
  EXPECT_FALSE(apply_failure_policy(spec, {exit_with(143)}, {.now = 9000}, book).failure.has_value());
  EXPECT_FALSE(apply_failure_policy(spec, {exit_with(12)}, {.now = 9001}, book).failure.has_value())
      << "the three are older than the window";
}

TEST(FailurePolicy, stays_small_however_many_restarts_are_allowed) {
  api::TrainJobSpec spec;
  spec.trainer.launcher = api::Launcher::kTorchrun;
  spec.restart_policy = {.max_restarts = 1'000'000, .window_seconds = 86400};
  Bookkeeping book;
  for (int i = 0; i < 5000; ++i) {
    PodEnd end = exit_with(12, i % 8);
    end.node = "node-" + std::to_string(i);
    ASSERT_FALSE(apply_failure_policy(spec, {end}, {.now = 1000 + i * 20}, book).failure.has_value());
    note_replacement(i % 8, 1000 + i * 20, book);
  }
  EXPECT_LE(book.avoided.size(), kAvoidedNodesMax);
  EXPECT_LE(to_json(book).dump().size(), 4096U);
}

TEST(FailurePolicy, waits_longer_with_every_hasty_replacement_and_forgets_it) {
  Bookkeeping book;
  api::UnixSeconds now = 1000;
  note_replacement(3, now, book);
  EXPECT_EQ(not_before(3, book), 0);  // the first never waits
  std::vector<api::UnixSeconds> waits;
  for (int i = 0; i < 9; ++i) {
    now = std::max(now, not_before(3, book)) + 1;  // it fails a second after its start
    note_replacement(3, now, book);
    waits.push_back(not_before(3, book) - now);
  }
  EXPECT_EQ(waits, (std::vector<api::UnixSeconds>{5, 10, 20, 40, 80, 160, 300, 300, 300}));
  now = not_before(3, book) + kQuickReplacementSeconds + 1;  // this one lived a minute
  note_replacement(3, now, book);
  EXPECT_EQ(not_before(3, book), 0);
  EXPECT_EQ(not_before(4, book), 0);  // another pod
}

TEST(FailurePolicy, a_gang_s_incident_is_counted_once) {
  api::TrainJobSpec spec;
  spec.trainer.launcher = api::Launcher::kTorchrun;
  Bookkeeping book;
  PodEnd first = exit_with(9, 2);
  first.time = 10;
  PodEnd second = exit_with(1, 0);
  second.time = 11;
  const FailureOutcome outcome = apply_failure_policy(spec, {second, first}, {.now = 20}, book);
  EXPECT_TRUE(outcome.is_gang);
  EXPECT_EQ(outcome.replacements.front().end.node_rank, 2);  // the cause is the one that came first
  EXPECT_EQ(book.counted.size(), 1U);
  EXPECT_EQ(book.counted.begin()->second, 1);
}

TEST(FailurePolicy, forgets_nodes_after_the_window) {
  Bookkeeping book;
  book.avoided = {{"old", 100}, {"new", 3000}};
  EXPECT_EQ(avoided_nodes(book, 3600, 3700), std::set<std::string>{"new"});
}

TEST(Bookkeeping, comes_back_as_it_was_written) {
  Bookkeeping book;
  book.checked_generation = 3;
  book.created = {0, 1, 5};
  book.done = {1};
  book.first_done_at = 12;
  book.counted = {{1000, 2}, {1060, 1}};
  book.out_of_memory = 1;
  book.checkpoint_step = 0;
  book.furthest_step = 7;
  book.without_progress = {{1, 2}};
  book.quick_replacements = {{1, {3, 99}}};
  book.avoided = {{"node-b", 5}};
  book.refusals = {{"node-c", 6}};
  book.moved = {2, 3};
  book.committed_spec = "0123456789abcdef";
  book.enough_were_ready = true;
  book.placement = {.short_since = 5, .times_given_back = 2, .again_at = 77};
  book.room_made_at = 78;
  book.suspending = true;
  book.spec_hold = Hold{4, "ConfigurationChanged", "words"};
  book.waiting_since = 44;
  book.were_ready = true;
  book.has_stepped = true;
  book.recovering = Recovering{1, "pod", "Crash", "words", uint64_t{1} << 40U};
  book.process_restarts_before = 2;
  book.process_restarts_now = 1;
  book.process_restarts_pod = "uid";
  EXPECT_EQ(bookkeeping_from_json(to_json(book)), book);
  EXPECT_EQ(bookkeeping_from_json(Json::parse(to_json(book).dump())), book);
  EXPECT_EQ(to_json(Bookkeeping{}), Json::object());
}

TEST(Bookkeeping, of_thousands_of_nodes_is_a_few_bytes) {
  Bookkeeping book;
  for (int node_rank = 0; node_rank < 10'000; ++node_rank) book.created.insert(node_rank);
  book.created.erase(17);
  book.done = {3, 5, 6};
  EXPECT_EQ(to_json(book)["created"], "0-16,18-9999");
  EXPECT_EQ(to_json(book)["done"], "3,5-6");
  EXPECT_EQ(bookkeeping_from_json(to_json(book)), book);
}

TEST(Bookkeeping, of_another_form_counts_as_empty) {
  for (const char* text :
       {"null", "[]", "7", R"({"counted":[1],"quickReplacements":{"x":1,"2":[]},"created":"all","recovering":3})",
        R"({"created":"0-2000000000","done":"5-x","avoided":{"h":"t"},"withoutProgress":{"1":"x"}})"}) {
    const Bookkeeping book = bookkeeping_from_json(Json::parse(text));
    EXPECT_TRUE(book.counted.empty() && book.created.empty() && book.avoided.empty()) << text;
  }
}

TEST(PodTemplate, never_makes_a_pod_of_what_has_the_wrong_type) {
  Observed o;
  o.job.meta = {.name = "a", .ns = "b", .uid = "c"};
  o.job.spec.trainer.image = "runner";
  o.job.spec.checkpoint = api::Checkpoint{};
  for (const char* text : {"7",
                           "[]",
                           R"({"spec":[]})",
                           R"({"metadata":"x"})",
                           R"({"metadata":{"labels":[]}})",
                           R"({"metadata":{"annotations":{"a":1}}})",
                           R"({"spec":{"containers":[7]}})",
                           R"({"spec":{"volumes":{}}})",
                           R"({"spec":{"initContainers":7}})",
                           R"({"spec":{"initContainers":[{"name":"lockstep-agent"}]}})",
                           R"({"spec":{"volumes":[{"name":"lockstep-agent"}]}})",
                           R"({"spec":{"affinity":[]}})",
                           R"({"spec":{"affinity":{"nodeAffinity":3}}})",
                           R"({"spec":{"securityContext":"root"}})",
                           R"({"spec":{"terminationGracePeriodSeconds":"long"}})",
                           R"({"spec":{"containers":[{"name":"trainer","env":{}}]}})",
                           R"({"spec":{"containers":[{"name":"trainer","env":[{}]}]}})",
                           R"({"spec":{"containers":[{"name":"trainer","ports":7}]}})",
                           R"({"spec":{"containers":[{"name":"trainer","resources":[]}]}})",
                           R"({"spec":{"containers":[{"name":"trainer","securityContext":1}]}})",
                           R"({"spec":{"containers":[{"name":"trainer","volumeMounts":"x"}]}})",
                           R"({"spec":{"containers":[{"name":"a"},{"name":"a"}]}})"}) {
    o.job.spec.trainer.pod_template = Json::parse(text);
    const Result<Json> pod = desired_pod(o, {.node_rank = 0, .attempt = 0, .avoided_nodes = {"node-b"}});
    ASSERT_FALSE(pod.ok()) << text;
    EXPECT_EQ(pod.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(pod.error().message.rfind("spec.trainer.podTemplate", 0), 0U) << pod.error().message;
  }
}

TEST(PodTemplate, gets_no_group_for_volumes_where_the_operator_sets_none) {
  Observed o;
  o.job.meta = {.name = "a", .ns = "b", .uid = "c"};
  o.job.spec.trainer.image = "runner";
  const auto security = [&o] { return (*desired_pod(o, {}))["spec"]["securityContext"]; };
  EXPECT_EQ(security()["fsGroup"], kDefaultFsGroup);
  o.settings.sets_fs_group = false;
  EXPECT_FALSE(security().contains("fsGroup"));
  EXPECT_FALSE(security().contains("fsGroupChangePolicy"));
  o.job.spec.trainer.pod_template = Json::parse(R"({"spec":{"securityContext":{"fsGroup":1000660000}}})");
  EXPECT_EQ(security()["fsGroup"], 1'000'660'000);
}

TEST(PodTemplate, joins_avoided_nodes_to_every_alternative_of_the_user_s_affinity) {
  Observed o;
  o.job.meta = {.name = "a", .ns = "b", .uid = "c"};
  o.job.spec.trainer.image = "runner";
  o.job.spec.trainer.pod_template = Json::parse(R"({"spec":{"affinity":{"nodeAffinity":{
    "requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
      {"matchExpressions":[{"key":"zone","operator":"In","values":["x"]}]},{"matchFields":[]}]}}}}})");
  const Result<Json> pod = desired_pod(o, {.node_rank = 1, .attempt = 2, .avoided_nodes = {"h1", "h2"}});
  ASSERT_TRUE(pod.ok()) << pod.error().message;
  const Json& terms = list_field(*pod, {"spec", "affinity", "nodeAffinity",
                                        "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"});
  ASSERT_EQ(terms.size(), 2U);
  for (const Json& term : terms) {
    ASSERT_EQ(term["matchFields"].size(), 2U);
    EXPECT_EQ(term["matchFields"][0], Json({{"key", "metadata.name"}, {"operator", "NotIn"}, {"values", {"h1"}}}));
  }
  EXPECT_EQ(terms[0]["matchExpressions"].size(), 1U);
}

// Only the group of an elastic Lockstep job goes on when one of its pods is preempted.
TEST(PodGroup, is_disrupted_whole_unless_its_job_is_elastic_under_lockstep) {
  for (const api::Launcher launcher : {api::Launcher::kLockstep, api::Launcher::kTorchrun}) {
    for (const bool is_elastic : {false, true}) {
      api::TrainJob job;
      job.meta = {.name = "a", .ns = "b", .uid = "c"};
      job.spec.scheduling.gang = api::Gang::kNative;
      job.spec.trainer.launcher = launcher;
      if (is_elastic) job.spec.elastic = api::Elastic{.min_nodes = 1, .max_nodes = 2};
      const Json spec = desired_pod_group(job, "scheduling.k8s.io/v1beta1", 0, 2)["spec"];
      const bool is_single = is_elastic && launcher == api::Launcher::kLockstep;
      EXPECT_EQ(spec["disruptionMode"], Json({{is_single ? "single" : "all", Json::object()}}));
    }
  }
}

TEST(DesiredEnv, is_what_the_runner_derives_its_place_from) {
  api::TrainJob job;
  job.meta = {.name = "sasrec", .ns = "team-a", .uid = "u"};
  job.spec.trainer.num_nodes = 3;
  job.spec.elastic = api::Elastic{.min_nodes = 2, .max_nodes = 5};
  Environment environment;
  Json env = desired_env(job, 8, "t");
  set_rank(api::Launcher::kLockstep, 2, 4, env);
  for (const Json& variable : env) environment[variable["name"]] = variable["value"];
  const Result<AgentPosition> position = derive_agent_position(environment, "sasrec-2", {});
  ASSERT_TRUE(position.ok()) << position.error().message;
  EXPECT_EQ(position->node_rank, 2);
  EXPECT_EQ(position->min_nodes, 2);
  EXPECT_EQ(position->max_nodes, 5);
  EXPECT_EQ(position->wanted_nodes, 3);
  EXPECT_EQ(position->coordinator_host, "sasrec-0.sasrec.team-a.svc");
  EXPECT_EQ(position->coordinator_port, 29400);
}

TEST(DesiredEnv, has_the_ports_of_the_job) {
  api::TrainJob job;
  job.meta = {.name = "sasrec", .ns = "team-a", .uid = "u"};
  const auto value_of = [&job](std::string_view name) {
    for (const Json& variable : desired_env(job, 1, "t")) {
      if (variable["name"] == name) return variable["value"].get<std::string>();
    }
    return std::string();
  };
  EXPECT_EQ(value_of(env::kStatusPort), "");
  job.spec.trainer.status_port = 9090;
  job.spec.trainer.coordinator_port = 9091;
  EXPECT_EQ(value_of(env::kStatusPort), "9090");
  EXPECT_EQ(value_of(env::kCoordinator), "sasrec-0.sasrec.team-a.svc:9091");
}

TEST(DesiredService, follows_the_ports_of_the_job) {
  api::TrainJob job;
  job.meta = {.name = "sasrec", .ns = "team-a", .uid = "u"};
  const Json before = desired_service(job);
  EXPECT_FALSE(service_differs(before, desired_service(job)));
  job.spec.trainer.status_port = 9090;
  EXPECT_TRUE(service_differs(before, desired_service(job)));
}

TEST(DesiredEnv, gives_a_job_that_was_made_again_a_higher_run_number) {
  const api::ObjectMeta first{.name = "sasrec", .ns = "team-a", .uid = "u1", .created = 1'795'255'200};
  api::ObjectMeta second = first;
  second.uid = "u2";
  EXPECT_NE(run_number(first), run_number(second)) << "made in the same second";
  second.created += 1;
  EXPECT_LT(run_number(first), run_number(second));
  constexpr api::UnixSeconds kYear2200 = 7'258'118'400;
  second.created = kYear2200;
  EXPECT_LT(run_number(second), uint64_t{1} << 53U);
}

TEST(DesiredEnv, tells_the_runner_which_job_it_is_and_what_it_may_go_on_from) {
  api::TrainJob job;
  job.meta = {.name = "sasrec", .ns = "team-a", .uid = "u", .created = 1'795'255'200};
  job.spec.checkpoint = api::Checkpoint{.resume = api::Resume::kSameJob};
  Environment environment;
  for (const Json& variable : desired_env(job, 1, "t")) environment[variable["name"]] = variable["value"];
  const Result<JobIdentity> identity = job_identity(environment);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->name, "team-a/sasrec");
  EXPECT_EQ(identity->uid, "u");
  EXPECT_EQ(identity->run, run_number(job.meta));
  EXPECT_EQ(identity->resume, ResumePolicy::kSameJob);
}

TEST(DesiredEnv, leaves_the_names_of_other_launchers_to_the_user) {
  Json env = {{{"name", "RANK"}, {"value", "mine"}}, {{"name", "LOCKSTEP_NODE_RANK"}, {"value", "0"}}};
  set_rank(api::Launcher::kLockstep, 2, 0, env);
  EXPECT_EQ(env[0]["value"], "mine");
  EXPECT_EQ(env[1]["value"], "2");
}

TEST(DesiredEnv, of_another_launcher_is_a_world_of_its_own) {
  api::TrainJob job;
  job.meta = {.name = "j", .ns = "n", .uid = "u"};
  job.spec.trainer.launcher = api::Launcher::kNone;
  job.spec.trainer.num_nodes = 3;
  Environment environment;
  Json env = desired_env(job, 1, "t");
  set_rank(api::Launcher::kNone, 2, 0, env);
  for (const Json& variable : env) {
    environment[variable["name"]] = variable["value"];
    EXPECT_TRUE(is_reserved(variable["name"].get<std::string>(), api::Launcher::kNone)) << variable;
  }
  const Result<World> world = derive_world(environment, "j-2", {});
  ASSERT_TRUE(world.ok()) << world.error().message;
  EXPECT_EQ(world->assignment.rank, 2);
  EXPECT_EQ(world->assignment.world_size, 3);
  EXPECT_EQ(world->master_addr, "j-0.j.n.svc");
  EXPECT_EQ(world->master_port, kMasterPort);
}

TEST(NumProcPerNode, is_the_number_of_gpus_where_the_user_does_not_say) {
  api::TrainJobSpec spec;
  EXPECT_EQ(num_proc_per_node(spec), 1);
  spec.trainer.resources_per_node = {{"limits", {{"nvidia.com/gpu", "4"}}}, {"requests", {{"nvidia.com/gpu", "4"}}}};
  EXPECT_EQ(num_proc_per_node(spec), 4);
  spec.trainer.resources_per_node = {{"requests", {{"amd.com/gpu", 8}}}};
  EXPECT_EQ(num_proc_per_node(spec), 8);
  spec.trainer.resources_per_node = Json::object();
  spec.trainer.pod_template =
      Json::parse(R"({"spec":{"containers":[{"name":"trainer","resources":{"limits":{"nvidia.com/gpu":2}}}]}})");
  EXPECT_EQ(num_proc_per_node(spec), 2);
  spec.trainer.num_proc_per_node = 1;
  EXPECT_EQ(num_proc_per_node(spec), 1);
  spec.trainer.num_proc_per_node.reset();
  spec.trainer.resources_per_node = {{"limits", {{"nvidia.com/gpu", "1e3k"}}}};
  EXPECT_EQ(num_proc_per_node(spec), 1);  // the API server refuses it as a number of GPUs
}

TEST(PodView, keeps_what_is_read_and_little_more) {
  Observed o;
  o.job.meta = {.name = "a", .ns = "b", .uid = "c"};
  o.job.spec.trainer.image = "runner";
  Json pod = *desired_pod(o, {.node_rank = 7, .attempt = 3});
  pod["metadata"]["uid"] = "pod-uid";
  pod["metadata"]["managedFields"] = Json::array({std::string(4000, 'x')});
  pod["metadata"]["deletionGracePeriodSeconds"] = 90;
  pod["spec"]["nodeName"] = "node-q";
  pod["spec"]["schedulingGates"] = Json::array({{{"name", "a.example/x"}}, {{"name", "b"}}});
  pod["status"] =
      Json::parse(R"({"phase":"Failed","podIP":"10.1.2.3","startTime":"2026-11-21T10:00:00Z","reason":"Evicted",
    "message":"m","qosClass":"Guaranteed","conditions":[{"type":"Ready","status":"True","lastProbeTime":null},
    {"type":"PodScheduled","status":"True","lastTransitionTime":"2026-11-21T09:59:00Z"},
    {"type":"PodReadyToStartContainers","status":"False","lastTransitionTime":"2026-11-21T10:00:00Z"},
    {"type":"DisruptionTarget","status":"True","reason":"r","message":"w"}],
    "containerStatuses":[{"name":"trainer","image":"i","ready":true,"state":{"terminated":{"exitCode":3,"message":"{}"}}}]})");
  const PodView view = view_of_pod(pod);
  EXPECT_EQ(view.meta.uid, "pod-uid");
  EXPECT_TRUE(view.meta.labels.empty());
  EXPECT_EQ(view.node_rank, 7);
  EXPECT_EQ(view.attempt, 3);
  EXPECT_EQ(view.num_nodes, 1);
  EXPECT_TRUE(view.serving);
  EXPECT_EQ(view.node, "node-q");
  EXPECT_EQ(view.gates, "a.example/x, b");
  EXPECT_EQ(view.ip, "10.1.2.3");
  EXPECT_EQ(view.deletion_grace_seconds, 90);
  EXPECT_EQ(view.scheduled_at, 1'795'255'140);
  EXPECT_TRUE(view.is_unprepared);
  EXPECT_EQ(view.reason, "Evicted");
  EXPECT_EQ(view.disruption, "r");
  EXPECT_TRUE(view.ready);
  EXPECT_EQ(view.end->exit_code, 3);
  EXPECT_TRUE(is_controlled_by(view.meta, o.job.meta));
  EXPECT_EQ(pod_index(view), (std::vector<std::string>{"job:b/a", "node:node-q"}));
  EXPECT_EQ(view.job, (api::ObjectKey{.ns = "b", .name = "a"}));
  pod["metadata"]["labels"].erase(std::string(kAttemptLabel));
  EXPECT_EQ(pod_index(view_of_pod(pod)), (std::vector<std::string>{"node:node-q"}));
  EXPECT_TRUE(views_of_pods({pod}).empty());
  for (const char* odd : {"null", "7", "[]", "{}", R"({"metadata":7,"status":[],"spec":"x"})"}) {
    const PodView nothing = view_of_pod(Json::parse(odd));
    EXPECT_TRUE(pod_index(nothing).empty());
    EXPECT_EQ(nothing.node_rank, -1);
  }
}

// etcd takes 1.5 MB, with the spec and the API server's own record of fields.
TEST(Status, of_ten_thousand_pods_that_were_lost_twice_stays_below_a_mebibyte) {
  api::TrainJobStatus status;
  Bookkeeping book;
  constexpr api::UnixSeconds kWhen = 1'795'255'200;
  for (int i = 0; i < 10'000; ++i) {
    status.attempts[i] = 1 + i % 2;  // no two neighbours the same: no ranges
    if (i % 2 == 0) book.created.insert(i);
    book.without_progress[i] = 2;
    book.quick_replacements[i] = {.times = 1, .last = kWhen + 1};
    book.avoided["node-" + std::to_string(i % 16) + "." + std::string(60, 'd')] = kWhen;
  }
  for (int i = 0; i < 10; ++i) add_failure({.host = std::string(60, 'h'), .message = std::string(4096, 'm')}, status);
  for (int i = 0; i < 10; ++i) {
    status.conditions.set({.type = std::to_string(i), .message = std::string(5000, 'm')}, kWhen);
  }
  status.bookkeeping = to_json(book);
  const size_t before = api::to_json(status).dump().size();
  EXPECT_LT(before, size_t{900} << 10);
  EXPECT_GT(before, size_t{600} << 10);
  forget_settled(-1, kWhen + 120, book);
  status.bookkeeping = to_json(book);
  EXPECT_LT(api::to_json(status).dump().size(), size_t{500} << 10) << "once the new pods have lived for a while";
}

TEST(FailurePolicy, forgets_what_no_later_decision_needs) {
  Bookkeeping book;
  book.furthest_step = 100;
  book.without_progress = {{1, 2}};
  note_replacement(1, 1'000, book);
  note_replacement(2, 1'000, book);
  note_replacement(2, 1'010, book);
  Bookkeeping kept = book;
  forget_settled(100, 1'059, kept);
  EXPECT_EQ(kept, book) << "it came no further, and the pods are young";
  forget_settled(100, 1'060, kept);
  EXPECT_EQ(kept.quick_replacements.count(1), 0U);
  EXPECT_EQ(kept.quick_replacements.count(2), 1U)
      << "its pod is made after the wait of 5 s, and may end soon after that";
  EXPECT_EQ(kept.without_progress, book.without_progress);
  forget_settled(101, 1'075, kept);
  EXPECT_TRUE(kept.quick_replacements.empty());
  EXPECT_TRUE(kept.without_progress.empty());
  EXPECT_EQ(kept.furthest_step, 101);
}

TEST(Bookkeeping, of_somebody_else_takes_no_time_to_read) {
  std::string ranges = "0-100000";
  for (int i = 0; i < 1'000; ++i) ranges.append(",0-100000");
  EXPECT_TRUE(bookkeeping_from_json({{"created", ranges}}).created.empty());
  EXPECT_EQ(bookkeeping_from_json({{"created", "0-2,4"}}).created, (std::set<int>{0, 1, 2, 4}));
}

// A user may label and fill a pod at will.
TEST(PodView, bounds_what_it_keeps) {
  Json pod = {{"metadata", {{"name", "p"}, {"ownerReferences", Json::array()}}}};
  Json& metadata = pod["metadata"];
  metadata["labels"] = {
      {std::string(kJobLabel), "j"}, {std::string(kNodeRankLabel), "7"}, {std::string(kAttemptLabel), "3"}};
  for (int i = 0; i < 10'000; ++i) {
    const std::string number = std::to_string(i);
    metadata["labels"]["l" + number] = "";
    metadata["ownerReferences"].push_back({{"uid", number}, {"controller", i == 9'999}});
    pod["spec"]["schedulingGates"].push_back({{"name", number}});
    pod["status"]["conditions"].push_back({{"type", number}});
    pod["status"]["containerStatuses"].push_back(
        {{"name", "trainer"}, {"state", {{"terminated", {{"exitCode", 1}, {"message", std::string(50'000, 'm')}}}}}});
  }
  const PodView view = view_of_pod(pod);
  EXPECT_TRUE(view.meta.labels.empty());
  EXPECT_EQ(view.meta.owners.capacity(), 1U);
  EXPECT_EQ(view.gates.size(), 4096U);
  EXPECT_EQ(view.node_rank, 7);
  EXPECT_EQ(view.attempt, 3);
  EXPECT_EQ(view.meta.controller()->uid, "9999");
  EXPECT_EQ(view.end->message.size(), 4096U);
  EXPECT_EQ(view.job.name, "j");
}

TEST(PodView, cuts_every_text_that_may_be_long) {
  const std::string text(50'000, 'm');
  const Json ended = {{"exitCode", 1}, {"reason", text}, {"message", text}};
  const Json waiting = {{"name", text}, {"state", {{"waiting", {{"reason", text}, {"message", text}}}}}};
  const auto condition = [&](const char* type, const char* status) -> Json {
    return {{"type", type}, {"status", status}, {"reason", text}, {"message", text}};
  };
  const Json owner = {{"controller", true}, {"apiVersion", text}, {"kind", text}, {"name", text}, {"uid", text}};
  const Json pod = {
      {"metadata",
       {{"name", "p"},
        {"ownerReferences", Json::array({owner})},
        {"annotations",
         {{std::string(kAvoidsAnnotation), "a," + text}, {std::string(kVolcanoGroupAnnotation), text}}}}},
      {"spec", {{"nodeName", text}, {"schedulingGates", Json::array({{{"name", text}}})}}},
      {"status",
       {{"phase", "Failed"},
        {"reason", text},
        {"message", text},
        {"podIP", text},
        {"conditions", Json::array({condition("PodScheduled", "False"), condition("DisruptionTarget", "True")})},
        {"initContainerStatuses", Json::array({waiting,
                                               {{"name", text}, {"state", {{"running", Json::object()}}}},
                                               {{"name", text}, {"state", {{"terminated", ended}}}}})}}}};
  const PodView view = view_of_pod(pod);
  ASSERT_TRUE(view.waiting && view.end);
  const api::OwnerReference& controller = *view.meta.controller();
  for (const std::string& kept : {view.gates,
                                  view.unschedulable,
                                  view.pod_group,
                                  view.init_container,
                                  view.node,
                                  view.ip,
                                  view.reason,
                                  view.message,
                                  view.disruption,
                                  view.disruption_message,
                                  view.waiting->container,
                                  view.waiting->reason,
                                  view.waiting->message,
                                  view.end->container,
                                  view.end->reason,
                                  view.end->message,
                                  *view.avoids.rbegin(),
                                  controller.api_version,
                                  controller.kind,
                                  controller.name,
                                  controller.uid}) {
    EXPECT_EQ(kept, text.substr(0, 4096));
  }
}

TEST(Trim, keeps_of_a_job_of_another_controller_what_can_be_read_and_no_template) {
  Json job = {{"apiVersion", "lockstep.dev/v1"},
              {"kind", "TrainJob"},
              {"metadata", {{"name", "a"}, {"managedFields", Json::array({"x"})}}},
              {"spec",
               {{"managedBy", "example.com/other"},
                {"checkpoint", {{"volume", {{"emptyDir", Json::object()}}}}},
                {"trainer", {{"image", "runner"}, {"numNodes", 3}, {"podTemplate", {{"spec", Json::object()}}}}}}}};
  const JobView kept = view_of_job(job);
  ASSERT_TRUE(kept.job.ok());
  EXPECT_EQ(kept.job->spec.trainer.num_nodes, 3);
  EXPECT_TRUE(kept.job->spec.trainer.pod_template.empty());
  EXPECT_FALSE(kept.job->spec.checkpoint.has_value());
  EXPECT_TRUE(kept.unreadable.is_null());
  for (const char* ours : {"lockstep.dev/trainjob-controller", "kueue.x-k8s.io/multikueue"}) {
    job["spec"]["managedBy"] = ours;
    EXPECT_FALSE(view_of_job(job).job->spec.trainer.pod_template.empty()) << ours;
  }
  EXPECT_FALSE(view_of_job(Json(7)).job.ok());
  job["spec"]["trainer"]["numNodes"] = "two";
  const JobView unreadable = view_of_job(job);
  EXPECT_FALSE(unreadable.job.ok());
  EXPECT_EQ(unreadable.meta.name, "a");
  EXPECT_EQ(unreadable.unreadable["spec"], job["spec"]);
  EXPECT_FALSE(unreadable.unreadable["metadata"].contains("managedFields"));
}

TEST(Trim, leaves_a_network_policy_comparable) {
  api::TrainJob job;
  job.meta = {.name = "a", .ns = "b", .uid = "c"};
  const Json desired = desired_network_policy(job, Settings{});
  Json stored = desired;
  stored["metadata"]["managedFields"] = Json::array({"x"});
  EXPECT_FALSE(network_policy_differs(trim_network_policy(stored), desired));
  stored["spec"]["egress"].push_back(Json::object());
  EXPECT_TRUE(network_policy_differs(trim_network_policy(stored), desired));
  for (int i = 0; i < 20'000; ++i) stored["spec"]["egress"].push_back(Json::object());
  EXPECT_LT(dump_line(trim_network_policy(stored)).size(), 1'000U) << "somebody else's may have any size";
  EXPECT_TRUE(network_policy_differs(trim_network_policy(stored), desired));
  stored.erase("spec");
  EXPECT_TRUE(network_policy_differs(trim_network_policy(stored), desired));
}

TEST(NodeView, says_whether_a_node_is_there_and_since_when) {
  const Json node = Json::parse(R"({"metadata":{"name":"h","labels":{"a":"b"}},
    "spec":{"podCIDR":"10.0.0.0/24","unschedulable":true,"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]},
    "status":{"images":[{"names":["i"]}],"conditions":[
      {"type":"MemoryPressure","status":"False","lastTransitionTime":"2026-11-21T09:00:00Z"},
      {"type":"Ready","status":"Unknown","lastTransitionTime":"2026-11-21T10:00:00Z","message":"m"}]}})");
  const NodeView expected{
      .ready = false, .unreachable = true, .out_of_service = true, .cordoned = true, .not_ready_since = 1'795'255'200};
  EXPECT_EQ(view_of_node(node), expected);
}

TEST(TerminationReport, is_read_as_far_as_it_goes) {
  EXPECT_FALSE(parse_termination_report("Traceback (most recent call last):").has_value());
  EXPECT_FALSE(parse_termination_report("[1]").has_value());
  const auto report =
      parse_termination_report(R"({"exitCode":5,"message":"loss is nan","rank":-1,"step":-1,"generation":9})");
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->exit_code, 5);
  EXPECT_FALSE(report->rank.has_value());
  EXPECT_FALSE(report->step.has_value());
}

}  // namespace
}  // namespace lockstep::train
