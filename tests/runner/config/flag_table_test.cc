#include "runner/config/flag_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "runner/config/flag_table_builder.h"
#include "runner/config/workload_flags.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

std::vector<Flag> sasrec_table() { return flag_table(find_workload(all_workload_flags(), "sasrec")); }

TEST(FlagTable, has_no_name_twice) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    std::set<std::string> names;
    for (const Flag& flag : flag_table(&workload)) {
      EXPECT_TRUE(names.insert(flag.name).second) << workload.name << " --" << flag.name;
      for (const std::string& alias : flag.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
    }
  }
}

TEST(FlagTable, a_flag_can_be_completed_after_others_were_added) {
  FlagTableBuilder table;
  const auto field = [](auto& config) -> auto& { return config.training.num_workers; };
  Flag& first = table.integer("first", FlagScope::kMaths, 0, 1, field, "");
  for (int i = 0; i < 100; ++i) {
    table.integer(("another" + std::to_string(i)).c_str(), FlagScope::kMaths, 0, 1, field, "");
  }
  first.aliases = {"completed"};
  EXPECT_EQ(table.take().front().aliases, std::vector<std::string>{"completed"});
}

TEST(FlagTable, without_a_workload_has_the_flags_that_every_workload_has) {
  const std::vector<Flag> common = flag_table(nullptr);
  EXPECT_NE(find_flag(common, "lr"), nullptr);
  EXPECT_EQ(find_flag(common, "maxlen"), nullptr);
  const std::vector<Flag> of_sasrec = sasrec_table();
  for (const Flag& flag : common) EXPECT_NE(find_flag(of_sasrec, flag.name), nullptr) << flag.name;
  const std::vector<Flag> of_all = flags_of_all(all_workload_flags());
  EXPECT_NE(find_flag(of_all, "maxlen"), nullptr);
  EXPECT_NE(find_flag(of_all, "lr"), nullptr);
}

TEST(FlagTable, has_the_guide_s_and_the_parent_s_spelling) {
  const std::vector<Flag> table = sasrec_table();
  for (const char* name : {"dataset",
                           "train_dir",
                           "batch_size",
                           "use_amp",
                           "multi_gpu",
                           "num_workers",
                           "num_epochs",
                           "lr",
                           "num_heads",
                           "num_blocks",
                           "hidden_units",
                           "maxlen",
                           "dropout_rate",
                           "backend",
                           "state_dict_path",
                           "master_port",
                           "lr_decay_step",
                           "lr_decay_rate",
                           "warmup_steps",
                           "l2_emb",
                           "norm_first",
                           "original",
                           "time_span",
                           "time_unit",
                           "no_time",
                           "no_mhc",
                           "mhc_expansion_rate",
                           "mhc_init_gate",
                           "mhc_sinkhorn_iter",
                           "mhc_no_amp",
                           "inference_only",
                           "nproc",
                           "nproc_per_node",
                           "local_rank",
                           "seed",
                           "device",
                           "log_every"}) {
    EXPECT_NE(find_flag(table, name), nullptr) << name;
  }
  EXPECT_EQ(find_flag(table, "nproc"), find_flag(table, "nproc_per_node"));
  EXPECT_EQ(find_flag(table, "nothing"), nullptr);
}

TEST(FlagTable, reads_back_every_default_that_it_writes) {
  RunConfig defaults;
  find_workload(all_workload_flags(), "sasrec")->set_defaults(defaults);
  for (const Flag& flag : sasrec_table()) {
    const std::string value = flag.get(defaults);
    RunConfig config = defaults;
    if (value.empty()) continue;  // an unset path or host
    EXPECT_TRUE(set_flag(flag, value, "", config).ok()) << flag.name << " " << value;
    EXPECT_EQ(flag.get(config), value) << flag.name;
    EXPECT_FALSE(flag.help.empty()) << flag.name;
    EXPECT_FALSE(flag.expects.empty()) << flag.name;
  }
}

TEST(FlagTable, writes_numbers_so_that_equal_values_are_equal_texts) {
  const std::vector<Flag> table = sasrec_table();
  const Flag& lr = *find_flag(table, "lr");
  std::set<std::string> texts;
  for (const char* text : {"0.001", "1e-3", "1.0e-03", "0.00100"}) {
    RunConfig config;
    ASSERT_TRUE(set_flag(lr, text, "", config).ok()) << text;
    EXPECT_EQ(config.training.lr, 0.001);
    texts.insert(lr.get(config));
  }
  EXPECT_EQ(texts.size(), 1U);
}

TEST(NearestFlag, offers_what_was_probably_meant) {
  const std::vector<Flag> table = sasrec_table();
  EXPECT_EQ(nearest_flag(table, "batchsize"), "batch_size");
  EXPECT_EQ(nearest_flag(table, "num_epoch"), "num_epochs");
  EXPECT_EQ(nearest_flag(table, "learning_curve_of_the_model"), "");
  EXPECT_EQ(nearest_flag(table, std::string(100000, 'x')), "");
}

TEST(Nnodes, is_a_number_or_a_range) {
  const std::vector<Flag> table = sasrec_table();
  const Flag& nnodes = *find_flag(table, "nnodes");
  RunConfig config;
  const auto text_after = [&](const std::string& text) {
    return nnodes.set(text, config) ? nnodes.get(config) : std::string("refused");
  };
  EXPECT_EQ(text_after("2"), "2");
  EXPECT_FALSE(config.launch.min_nodes);
  EXPECT_EQ(text_after("1:4"), "1:4");
  EXPECT_EQ(config.launch.min_nodes, 1);
  EXPECT_EQ(config.launch.nnodes, 4);
  EXPECT_EQ(text_after("3"), "3");
  EXPECT_FALSE(config.launch.min_nodes);
  EXPECT_EQ(text_after("auto"), "auto");
  for (const char* text : {"", "0", "-1", "1:", ":2", "0:2", "1:2:3", "a:b", "1000001", "auto:2"}) {
    EXPECT_EQ(text_after(text), "refused") << text;
  }
}

TEST(FlagTable, refuses_a_name_with_a_dash) {
  FlagTableBuilder builder;
  EXPECT_THROW(builder.custom("my-size", FlagScope::kMaths, "a size", "mine"), std::invalid_argument);
}

TEST(FlagTable, refuses_a_name_that_is_taken) {
  FlagTableBuilder builder;
  builder.custom("lr", FlagScope::kMaths, "a rate", "learning rate");
  try {
    builder.custom("lr", FlagScope::kMaths, "a rate", "mine");
    FAIL() << "accepted";
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(),
                 "there is a flag lr already: give this one another name, or, if it is a flag that every workload has, "
                 "set its default in set_defaults");
  }
}

// A workload with these flags, and with a task that has its own.
WorkloadFlags with_flags(std::vector<std::string> names, std::vector<std::string> of_task = {}) {
  const auto adding = [](std::vector<std::string> list) {
    return [list = std::move(list)](FlagTableBuilder& table) {
      for (const std::string& name : list) table.custom(name.c_str(), FlagScope::kMaths, "a word", "mine");
    };
  };
  WorkloadFlags workload{.name = "mine", .add_flags = adding(std::move(names))};
  workload.tasks = {{.name = "look", .add_flags = adding(std::move(of_task)), .workload_flags = {"seed"}}};
  return workload;
}

std::string refusal_of(const WorkloadFlags& workload) {
  const Status names = check_flag_names(workload);
  return names.ok() ? "" : names.error().message;
}

TEST(CheckFlagNames, takes_the_workloads_of_lockstep) {
  for (const WorkloadFlags& workload : all_workload_flags()) EXPECT_EQ(refusal_of(workload), "") << workload.name;
  EXPECT_EQ(refusal_of(with_flags({"width"}, {"width", "count", "file"})), "");
}

TEST(CheckFlagNames, names_a_flag_that_is_there_twice) {
  EXPECT_EQ(refusal_of(with_flags({"epochs"})),
            "the flag --epochs is there twice, once as another name of --num_epochs; choose another name");
  WorkloadFlags with_alias = with_flags({});
  with_alias.add_flags = [](FlagTableBuilder& table) {
    table.custom("rate", FlagScope::kMaths, "a word", "mine").aliases = {"lr"};
  };
  EXPECT_EQ(refusal_of(with_alias),
            "the flag --lr is there twice, once as another name of --rate; choose another name");
  EXPECT_EQ(refusal_of(with_flags({}, {"seed"})), "the task look: the flag --seed is there twice; choose another name");
  EXPECT_THROW(refusal_of(with_flags({"lr"})), std::invalid_argument);
  EXPECT_THROW(refusal_of(with_flags({}, {"out"})), std::invalid_argument);
}

TEST(CheckFlagNames, names_a_flag_that_the_command_line_itself_has) {
  for (const std::string name : {"config", "plugin", "help", "file", "filename", "mount"}) {
    EXPECT_EQ(refusal_of(with_flags({name})),
              "the flag --" + name + ": lockstep itself takes that name; choose another");
  }
  EXPECT_EQ(refusal_of(with_flags({}, {"config"})),
            "the task look: the flag --config: lockstep itself takes that name; choose another");
  EXPECT_EQ(refusal_of(with_flags({"a=b"})), "the flag \"a=b\": expected a name of letters, digits and _");
}

TEST(CheckFlagNames, names_a_flag_that_a_task_takes_from_its_workload_in_vain) {
  WorkloadFlags workload = with_flags({"width"});
  workload.tasks[0].workload_flags = {"wdth"};
  EXPECT_EQ(refusal_of(workload), "the task look uses the workload's flag --wdth, which it does not have");
}

}  // namespace
}  // namespace lockstep
