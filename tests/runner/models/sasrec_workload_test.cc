#include "runner/models/sasrec/sasrec_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "runner/models/registry.h"
#include "runner/models/workload_flags.h"
#include "tests/runner/models/sasrec_fixture.h"
#include "tests/support/disk.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SasrecForm kForms[] = {SasrecForm::kPostNorm, SasrecForm::kPreNorm, SasrecForm::kOriginal};

std::vector<at::Tensor> gradients_of(const SasrecWorkload& workload) {
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& parameter : parameters_of(workload)) gradients.push_back(parameter.tensor.grad().clone());
  return gradients;
}

void clear_gradients(const SasrecWorkload& workload) {
  for (const NamedTensor& parameter : parameters_of(workload)) parameter.tensor.mutable_grad() = at::Tensor();
}

TEST(SasrecWorkload, starts_at_two_log_two_in_every_form) {
  for (const SasrecForm form : kForms) {
    RunConfig config = with_form(small_config(), form);
    options_of<SasrecOptions>(config).hidden_units = 50;
    options_of<SasrecOptions>(config).num_heads = 1;
    const auto workload = make_small(config);
    const WeighedBatch batch = batch_of(*workload, batch_spec(0, 64));
    const double loss = workload->loss(batch.batch)[0].item<double>() / batch.weight;
    EXPECT_NEAR(loss, 2.0 * std::numbers::ln2, 0.1) << "form " << static_cast<int>(form);
  }
}

TEST(SasrecWorkload, every_parameter_gets_a_gradient_and_padding_none) {
  for (const SasrecForm form : kForms) {
    RunConfig config = with_form(small_config(), form);
    const auto workload = make_small(config);
    loss_of(*workload, batch_spec(0, 32)).backward();
    for (const NamedTensor& parameter : parameters_of(*workload)) {
      const at::Tensor& gradient = parameter.tensor.grad();
      ASSERT_TRUE(gradient.defined()) << parameter.name;
      EXPECT_GT(gradient.abs().sum().item<double>(), 0.0) << parameter.name;
      if (parameter.name.find("_emb.") != std::string::npos) {
        EXPECT_EQ(gradient[0].abs().sum().item<double>(), 0.0) << parameter.name;
      }
    }
  }
}

TEST(SasrecWorkload, names_and_shapes_are_those_of_the_python_implementation) {
  RunConfig config = small_config();
  options_of<SasrecOptions>(config).num_blocks = 1;
  const auto workload = make_small(config);
  const int64_t items = workload->data().num_items();
  const std::vector<std::pair<std::string, std::vector<int64_t>>> expected = {
      {"item_emb.weight", {items + 1, 16}},
      {"pos_emb.weight", {13, 16}},
      {"attention_layernorms.0.weight", {16}},
      {"attention_layernorms.0.bias", {16}},
      {"attention_layers.0.in_proj_weight", {48, 16}},
      {"attention_layers.0.in_proj_bias", {48}},
      {"attention_layers.0.out_proj.weight", {16, 16}},
      {"attention_layers.0.out_proj.bias", {16}},
      {"forward_layernorms.0.weight", {16}},
      {"forward_layernorms.0.bias", {16}},
      {"forward_layers.0.conv1.weight", {16, 16, 1}},
      {"forward_layers.0.conv1.bias", {16}},
      {"forward_layers.0.conv2.weight", {16, 16, 1}},
      {"forward_layers.0.conv2.bias", {16}},
      {"last_layernorm.weight", {16}},
      {"last_layernorm.bias", {16}}};
  const auto parameters = parameters_of(*workload);
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(parameters[i].name, expected[i].first);
    EXPECT_EQ(parameters[i].tensor.sizes().vec(), expected[i].second) << parameters[i].name;
    EXPECT_TRUE(parameters[i].tensor.is_leaf() && parameters[i].tensor.requires_grad()) << parameters[i].name;
  }
}

TEST(SasrecWorkload, parameters_are_a_function_of_the_seed) {
  const auto one = make_small(small_config());
  const auto two = make_small(small_config());
  for (size_t i = 0; i < parameters_of(*one).size(); ++i) {
    EXPECT_TRUE(at::equal(parameters_of(*one)[i].tensor, parameters_of(*two)[i].tensor));
  }
  two->initialize(8);
  EXPECT_FALSE(at::equal(parameters_of(*one)[0].tensor, parameters_of(*two)[0].tensor));
}

TEST(SasrecWorkload, matrices_are_xavier_normal_and_padding_rows_zero) {
  RunConfig config = small_config();
  options_of<SasrecOptions>(config).hidden_units = 64;
  const auto workload = make_small(config);
  for (const NamedTensor& parameter : parameters_of(*workload)) {
    const at::Tensor& value = parameter.tensor;
    if (value.dim() < 2) continue;
    const double expected = std::sqrt(2.0 / static_cast<double>(value.size(0) + value.size(1)));
    EXPECT_NEAR(value.std().item<double>() / expected, 1.0, 0.1) << parameter.name;
    EXPECT_NEAR(value.mean().item<double>(), 0.0, 0.02) << parameter.name;
    if (parameter.name.ends_with("_emb.weight")) {
      EXPECT_EQ(value[0].abs().sum().item<double>(), 0.0) << parameter.name;
    }
  }
}

TEST(SasrecWorkload, a_batch_does_not_depend_on_how_it_is_split) {
  const auto workload = make_small(small_config());
  const WeighedBatch whole = batch_of(*workload, batch_spec(0, 24));
  const at::Tensor& ids = whole.batch["ids_3BT"];
  double weight = 0;
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 18}, {23, 1}}) {
    const WeighedBatch part = batch_of(*workload, batch_spec(first, count));
    EXPECT_TRUE(at::equal(part.batch["ids_3BT"], ids.slice(1, first, first + count)));
    weight += part.weight;
  }
  EXPECT_EQ(weight, whole.weight);
  EXPECT_EQ(weight, static_cast<double>(ids[1].ne(0).sum().item<int64_t>()));
}

TEST(SasrecWorkload, loss_and_gradients_with_dropout_do_not_depend_on_how_the_batch_is_split) {
  for (const SasrecForm form : kForms) {
    RunConfig config = with_form(small_config(), form);
    const auto workload = make_small(config);
    const at::Tensor whole = loss_of(*workload, batch_spec(0, 24));
    whole.backward();
    const auto expected = gradients_of(*workload);
    clear_gradients(*workload);
    double sum = 0;
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 7}, {7, 16}, {23, 1}}) {
      const at::Tensor part = loss_of(*workload, batch_spec(first, count));
      part.backward();
      sum += part.item<double>();
    }
    EXPECT_NEAR(sum / whole.item<double>(), 1.0, 1e-6);
    const auto split = gradients_of(*workload);
    for (size_t i = 0; i < split.size(); ++i) {
      const double scale = std::max(expected[i].norm().item<double>(), 1e-3);
      EXPECT_LT((split[i] - expected[i]).norm().item<double>() / scale, 1e-5) << parameters_of(*workload)[i].name;
    }
  }
}

TEST(SasrecWorkload, no_position_sees_what_comes_after_it) {
  for (const SasrecForm form : kForms) {
    RunConfig config = with_form(small_config(), form);
    const auto workload = make_small(config);
    const at::NoGradGuard no_grad;
    const at::Tensor seq = at::arange(1, 13).view({1, 12});
    const at::Tensor changed = seq.clone();
    changed[0][11] = 20;
    const at::Tensor before = workload->model().encode(seq, {});
    const at::Tensor after = workload->model().encode(changed, {});
    EXPECT_TRUE(at::allclose(before.slice(1, 0, 11), after.slice(1, 0, 11)));
    EXPECT_FALSE(at::allclose(before.slice(1, 11), after.slice(1, 11)));
  }
}

TEST(SasrecWorkload, regularization_is_off_by_default_and_the_squared_table_otherwise) {
  EXPECT_FALSE(make_small(small_config())->regularization().defined());
  RunConfig config = small_config();
  options_of<SasrecOptions>(config).l2_emb = 0.5;
  const auto workload = make_small(config);
  const double squares = parameters_of(*workload)[0].tensor.square().sum().item<double>();
  EXPECT_NEAR(workload->regularization().item<double>(), 0.5 * squares, 1e-3);
}

Workload::EvaluationReport report_of(int64_t epoch, double valid_ndcg) {
  return {.epoch = epoch,
          .seconds_training = 1.5,
          .metrics = {{"valid_ndcg@10", valid_ndcg}, {"valid_hr@10", 0.2}, {"test_ndcg@10", 0.3}, {"test_hr@10", 0.4}}};
}

TEST(SasrecWorkload, evaluation_lines_are_the_guides) {
  const auto workload = make_small(small_config());
  EXPECT_EQ(workload->evaluation_lines(report_of(20, 0.12345)),
            std::vector<std::string>{"epoch:20, time: 1.500000(s), valid (NDCG@10: 0.1235, HR@10: 0.2000), "
                                     "test (NDCG@10: 0.3000, HR@10: 0.4000)"});
}

TEST(SasrecWorkload, weights_are_named_when_a_figure_improves_also_after_a_resume) {
  RunConfig config = small_config();
  config.training.lr = 1e-3;
  const auto workload = make_small(config);
  EXPECT_THAT(workload->outputs(report_of(20, 0.1)),
              ElementsAre("SASRec.epoch=20.lr=0.001.layer=2.head=2.hidden=16.maxlen=12.pth"));
  EXPECT_THAT(workload->outputs(report_of(40, 0.1)), IsEmpty());
  const auto resumed = make_small(config);
  ASSERT_TRUE(resumed->restore_progress(workload->progress_state()).ok());
  EXPECT_THAT(resumed->outputs(report_of(60, 0.1)), IsEmpty());
  EXPECT_THAT(resumed->outputs(report_of(80, 0.2)), SizeIs(1));
  EXPECT_FALSE(resumed->restore_progress(Json{{"best", {{"valid_hr@10", "high"}}}}).ok());
}

std::unique_ptr<SasrecWorkload> made_of(const std::string& text) {
  auto workload = SasrecWorkload::create(small_config(), dataset_from(text), at::Device(at::kCPU));
  EXPECT_TRUE(workload.ok()) << (workload.ok() ? "" : workload.error().message);
  return std::move(workload).value();
}

const std::string kShop = "1 50 5 1\n1 60 5 2\n1 70 5 3\n1 80 5 4\n2 90 5 1\n2 60 5 2\n2 50 5 3\n";

TEST(SasrecWorkload, a_checkpoint_of_items_with_other_numbers_is_refused) {
  const Json saved = made_of(kShop)->progress_state();
  EXPECT_TRUE(made_of(kShop + "2 70 5 4\n")->restore_progress(saved).ok()) << "a line was appended";
  const auto shifted = made_of("1 70 5 0\n" + kShop);  // as many items
  const Status refused = shifted->restore_progress(saved);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(refused.error().message, ::testing::AllOf(HasSubstr("other item numbers than test data has now"),
                                                        HasSubstr("Give the file that it was trained on")));
  Json of_an_earlier_version = saved;
  of_an_earlier_version.erase("items_sha256");
  EXPECT_TRUE(shifted->restore_progress(of_an_earlier_version).ok());
}

TEST(SasrecWorkload, ranks_that_read_different_files_differ_in_a_fact) {
  const Json facts = made_of(kShop)->shared_facts();
  EXPECT_EQ(facts.at("number of samples"), 2);
  EXPECT_EQ(facts.at("number of items"), 5);
  EXPECT_EQ(made_of(kShop)->shared_facts(), facts);
  const auto with = [](std::string text, const std::string& from, const std::string& to) {
    return made_of(text.replace(text.find(from), from.size(), to))->shared_facts();
  };
  EXPECT_NE(with(kShop, "2 90 5 1", "2 90 5 0"), facts) << "another time";
  EXPECT_NE(with(kShop, "2 60 5 2", "2 80 5 2"), facts) << "another item";
  EXPECT_NE(with(kShop, "2 90 5 1", "2 91 5 1"), facts) << "another id";
}

TEST(SasrecWorkload, learning_rates_in_file_names_are_written_as_python_does) {
  for (const auto& [lr, text] : std::vector<std::pair<double, std::string>>{
           {1e-3, "0.001"}, {1e-4, "0.0001"}, {1e-5, "1e-05"}, {2.5e-5, "2.5e-05"}, {1.0, "1.0"}}) {
    RunConfig config = small_config();
    config.training.lr = lr;
    const std::string file = make_small(config)->outputs(report_of(1, 0.1)).at(0);
    EXPECT_NE(file.find(".lr=" + text + ".layer"), std::string::npos) << file;
  }
}

TEST(Registry, a_data_set_that_is_missing_ends_the_worker_as_such) {
  RunConfig config = small_config();
  options_of<SasrecOptions>(config).dataset = "no-such-data-set";
  const auto missing = own_workloads(disk()).front().make(config, at::Device(at::kCPU), [](int64_t, int64_t) {});
  ASSERT_TRUE(std::holds_alternative<Failure>(missing));
  EXPECT_EQ(std::get<Failure>(missing).code, ExitCode::kData);
}

TEST(Registry, the_command_line_has_the_same_workloads_and_each_has_all_its_parts) {
  const WorkloadList& flags = all_workload_flags();
  const std::vector<PluginWorkload> all = own_workloads(disk());
  ASSERT_EQ(all.size(), flags.size());
  for (size_t i = 0; i < flags.size(); ++i) {
    const PluginWorkload& own = all[i];
    EXPECT_EQ(own.flags.name, flags[i].name);
    EXPECT_TRUE(own.make) << own.flags.name;
    EXPECT_TRUE(own.run_task || own.flags.tasks.empty()) << own.flags.name;
  }
}

}  // namespace
}  // namespace lockstep
