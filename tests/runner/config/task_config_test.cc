#include "runner/config/task_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runner/models/sasrec/recommend_flags.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/workload_flags.h"
#include "tests/support/disk.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

using Words = std::vector<std::string>;

const WorkloadFlags& workload() { return *find_workload(all_workload_flags(), "sasrec"); }
const WorkloadTask& task() { return *find_task(&workload(), "recommend"); }

Words line(const Words& flags) {
  Words all{"sasrec", "recommend"};
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

std::string refused(const Words& flags, const TrainedFlags* trained = nullptr) {
  const Result<RunConfig> config = parse_task_config(line(flags), all_workload_flags(), trained);
  EXPECT_FALSE(config.ok());
  return config.ok() ? "" : config.error().message;
}

TrainedFlags trained_flags(const std::string& args_txt = "") {
  const Json maths = {{"dataset", "ml-100k"}, {"maxlen", "20"}, {"variant", "tisasrec"}, {"lr", "0.1"}};
  return flags_of_checkpoint(workload(), task(), maths, args_txt, "state.json of /runs/x/step-00000005");
}

TEST(TaskConfig, a_task_is_a_known_word_after_a_known_workload) {
  EXPECT_TRUE(names_task({"sasrec", "recommend"}, all_workload_flags()));
  EXPECT_TRUE(names_task({"sasrec", "recommend", "--help"}, all_workload_flags()));
  EXPECT_FALSE(names_task({"sasrec", "--dataset", "recommend"}, all_workload_flags()));
  EXPECT_FALSE(names_task({"sasrec"}, all_workload_flags()));
  EXPECT_FALSE(names_task({"recommend", "sasrec"}, all_workload_flags()));
}

TEST(TaskConfig, knows_the_flags_that_act_on_the_task_alone) {
  const std::vector<Flag> table = task_flag_table(workload(), task());
  for (const char* const name : {"checkpoint", "out", "device", "threads", "topk", "dataset", "maxlen"}) {
    EXPECT_NE(find_flag(table, name), nullptr) << name;
  }
  for (const char* const name : {"lr", "nproc", "eval_users", "dropout_rate", "time_dropout"}) {
    EXPECT_EQ(find_flag(table, name), nullptr) << name;
  }
}

TEST(TaskConfig, before_the_checkpoint_is_read_the_line_alone_is_judged) {
  const Result<RunConfig> config = parse_task_config(line({"--checkpoint", "x", "--topk=3"}), all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->task.checkpoint, "x");
  EXPECT_EQ(options_of<RecommendOptions>(*config).topk, 3);
  EXPECT_THAT(refused({}), HasSubstr("--checkpoint is required"));
  EXPECT_THAT(refused({"--checkpoint", "x", "--user", "1", "--users", "f"}), HasSubstr("contradict each other"));
}

TEST(TaskConfig, the_checkpoint_s_flags_hold_where_none_is_given) {
  const TrainedFlags trained = trained_flags();
  const Result<RunConfig> config =
      parse_task_config(line({"--checkpoint", "x", "--maxlen", "30"}), all_workload_flags(), &trained);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(options_of<SasrecOptions>(*config).dataset, "ml-100k");
  EXPECT_EQ(options_of<SasrecOptions>(*config).variant, SequenceVariant::kTisasrec);
  EXPECT_EQ(options_of<SasrecOptions>(*config).maxlen, 30);
  EXPECT_THAT(remarks_on_other_flags(*config, trained),
              ElementsAre("--maxlen is 30 here and was 20 when the weights were trained"));
}

TEST(TaskConfig, a_data_set_of_the_same_name_is_no_other_one) {
  const TrainedFlags trained = trained_flags();
  const Result<RunConfig> config = parse_task_config(line({"--checkpoint", "x", "--dataset", "/data/ml-100k.inter"}),
                                                     all_workload_flags(), &trained);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(options_of<SasrecOptions>(*config).dataset, "/data/ml-100k.inter");
  EXPECT_THAT(remarks_on_other_flags(*config, trained), IsEmpty());
}

TEST(TaskConfig, args_txt_says_where_the_data_set_lies) {
  EXPECT_THAT(trained_flags().values, Contains(Pair("dataset", "ml-100k")));
  EXPECT_THAT(trained_flags("dataset,/a,b/ml-100k.inter\ndata_dir,/data\n").values,
              ::testing::AllOf(Contains(Pair("dataset", "/a,b/ml-100k.inter")), Contains(Pair("data_dir", "/data"))));
  EXPECT_THAT(trained_flags("dataset,/data/other.inter\nmaxlen,50\n").values,
              ::testing::AllOf(Contains(Pair("dataset", "ml-100k")), Contains(Pair("maxlen", "20"))));
  EXPECT_THAT(trained_flags("device,cuda\nno comma\n").values,
              ::testing::AllOf(Not(Contains(Key("device"))), Not(Contains(Key("lr")))));
}

TEST(TaskConfig, a_value_that_is_none_is_refused_by_where_it_stands) {
  TrainedFlags trained = trained_flags();
  trained.values["maxlen"] = "long";
  EXPECT_THAT(refused({"--checkpoint", "x"}, &trained),
              HasSubstr("--maxlen: found \"long\", expected an integer from 1 to 65536 (state.json of /runs/x/"));
}

TEST(TaskConfig, what_the_workload_checks_is_checked_with_the_checkpoint_s_flags) {
  const TrainedFlags trained = trained_flags();
  EXPECT_THAT(refused({"--checkpoint", "x", "--num_heads", "3"}, &trained),
              HasSubstr("not divisible by --num_heads 3"));
}

RunConfig given(const Words& flags) {
  Result<RunConfig> config = parse_task_config(line(flags), all_workload_flags());
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? std::move(config).value() : RunConfig{};
}

TEST(WeightFile, the_guide_s_name_says_the_shape) {
  const auto flags = flags_of_sasrec_weights(
      disk(), given({"--dataset", "d", "--checkpoint",
                     "/x.layer=9/TiSASRec.epoch=20.lr=0.001.layer=2.head=1.hidden=50.maxlen=200.pth"}));
  ASSERT_TRUE(flags.ok()) << flags.error().message;
  EXPECT_THAT(*flags, ElementsAre(Pair("hidden_units", "50"), Pair("maxlen", "200"), Pair("num_blocks", "2"),
                                  Pair("num_heads", "1"), Pair("variant", "tisasrec")));
}

TEST(WeightFile, what_its_name_does_not_say_is_asked_for) {
  const auto missing = [](const Words& flags) {
    const auto found = flags_of_sasrec_weights(disk(), given(flags));
    EXPECT_FALSE(found.ok());
    return found.ok() ? "" : found.error().message;
  };
  EXPECT_THAT(missing({"--checkpoint", "model.pth"}),
              HasSubstr("--dataset, --variant, --maxlen, --hidden_units, --num_blocks, --num_heads (a name"));
  EXPECT_THAT(
      missing({"--checkpoint", "model.layer=.head=4.pth", "--dataset", "d", "--variant", "sasrec", "--maxlen=5"}),
      HasSubstr("its name does not contain: --hidden_units, --num_blocks ("));
}

}  // namespace
}  // namespace lockstep
