#include "runner/models/protein/mpnn_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/protein/data/structure.h"
#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/workload_flags.h"
#include "tests/runner/data/structure_caches.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kMpnnSeed = 42;

// Residues 1, 2, … with all atoms. Two chains of different steps are alike at every fifth residue at most.
StructureChain residues_along_a_line(const std::string& id, int length, int step) {
  StructureChain chain;
  chain.id = id;
  for (int i = 0; i < length; ++i) {
    const auto x = 3.8F * static_cast<float>(i);
    Position position;
    position.backbone = {{{x, 0, 0}, {x + 1, 1, 0}, {x + 2, 0, 1}, {x + 2, 1, 1}}};
    position.number = i + 1;
    position.type = static_cast<uint8_t>(i * step % 20);
    position.flags = kInFile | kStandardResidue;
    chain.positions.push_back(position);
  }
  return chain;
}

// Chains A, R (a nucleic acid), B, C: C is a copy of A.
Structure structure_with_a_copy() {
  Structure structure{.name = "1abc", .chains = {}};
  structure.chains = {residues_along_a_line("A", 30, 3), residues_along_a_line("R", 9, 1),
                      residues_along_a_line("B", 20, 7), residues_along_a_line("C", 30, 3)};
  structure.chains[1].is_protein = false;
  group_chains(structure);
  return structure;
}

Structure of_one_chain(const std::string& name, int64_t cluster, ChainSplit split = ChainSplit::kTrain) {
  Structure structure{.name = name, .chains = {residues_along_a_line("A", 25, 3)}};
  structure.chains[0].cluster = cluster;
  structure.chains[0].split = split;
  return structure;
}

std::unique_ptr<MpnnWorkload> mpnn_workload(const std::vector<Structure>& structures,
                                            const std::string& val_split = "0") {
  const RunConfig config =
      *parse_run_config({"protein", "--pdb_path", "generated", "--hidden_dim", "32", "--num_encoder_layers", "1",
                         "--num_decoder_layers", "1", "--val_split", val_split},
                        all_workload_flags());
  return std::move(MpnnWorkload::create(config, structure_cache_of(structures), at::Device(at::kCPU))).value();
}

DeviceBatch batch_of_sample(const MpnnWorkload& workload, int64_t sample, int64_t epoch) {
  const BatchShare share{
      .seed = kMpnnSeed, .step = epoch, .epoch = epoch, .phase = 0, .first_slot = 0, .samples = {sample}};
  return {.share = share, .tensors = workload.fetch(share)->tensors};
}

// The names of the chains of `structure` whose amino acids are all hidden; "?" for one that is hidden in part.
std::string hidden_chains(const MpnnWorkload& workload, const Structure& structure, int64_t epoch) {
  const at::Tensor chain_M_L = batch_of_sample(workload, 0, epoch)["chain_M_BL"][0];
  std::string names;
  int64_t begin = 0;
  for (const StructureChain& chain : structure.chains) {
    if (!chain.is_protein) continue;
    const auto length = static_cast<int64_t>(chain.positions.size());
    const auto hidden = chain_M_L.narrow(0, begin, length).sum().item<double>();
    if (hidden > 0.0) names += hidden == static_cast<double>(length) ? chain.id : "?";
    begin += length;
  }
  EXPECT_EQ(begin, chain_M_L.size(0)) << "the nucleic acid is no part of the batch";
  return names;
}

TEST(MpnnWorkload, hides_the_drawn_chain_together_with_its_copies) {
  const Structure structure = structure_with_a_copy();
  const auto workload = mpnn_workload({structure});
  std::map<std::string, int> times;
  for (int64_t epoch = 0; epoch < 60; ++epoch) ++times[hidden_chains(*workload, structure, epoch)];
  // Each of the three has the same chance: A and C together two times of three.
  EXPECT_THAT(times, UnorderedElementsAre(Pair("AC", Gt(25)), Pair("B", Gt(8))));
  EXPECT_EQ(hidden_chains(*workload, structure, 7), hidden_chains(*workload, structure, 7));
}

TEST(MpnnWorkload, weighs_a_batch_by_the_residues_that_are_hidden_and_have_all_atoms) {
  Structure structure = structure_with_a_copy();
  for (StructureChain& chain : structure.chains) chain.positions[4].backbone[3] = kMissingAtom;
  const auto workload = mpnn_workload({structure});
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    const bool is_b = hidden_chains(*workload, structure, epoch) == "B";
    const auto batch = workload->fetch({.seed = kMpnnSeed, .epoch = epoch, .samples = {0}});
    EXPECT_THAT(batch->weights, Each(is_b ? 19.0 : 58.0)) << epoch;
  }
}

TEST(MpnnWorkload, hides_a_listed_chain_with_its_copies_in_every_epoch) {
  Structure structure = structure_with_a_copy();
  structure.chains[0].cluster = 7;
  const auto workload = mpnn_workload({structure});
  for (int64_t epoch = 0; epoch < 20; ++epoch) EXPECT_EQ(hidden_chains(*workload, structure, epoch), "AC") << epoch;
}

// A capsid of ten copies in two assemblies, and a monomer of the same cluster.
TEST(MpnnWorkload, a_listed_chain_has_the_same_chance_however_many_copies_and_assemblies_it_has) {
  std::vector<Structure> structures = {of_one_chain("1mon-1", 7)};
  for (const char* name : {"1cap-1", "1cap-2"}) {
    Structure capsid = of_one_chain(name, 7);
    for (int copy = 2; copy <= 10; ++copy) {
      capsid.chains.push_back(capsid.chains.front());
      capsid.chains.back().id = "A-" + std::to_string(copy);
    }
    structures.push_back(capsid);
  }
  const auto workload = mpnn_workload(structures);
  const auto source = workload->batches({.split = Split::kTrain, .seed = kMpnnSeed, .global_batch = 1000}).value();
  std::map<int64_t, int> times;  // by sample: the monomer is the first
  for (int64_t epoch = 0; epoch < 2000; ++epoch) ++times[source->batch(epoch, 0).at(0)];
  EXPECT_EQ(times.size(), 3U) << "one sample for each assembly";
  EXPECT_NEAR(times[0], 1000, 90);
  EXPECT_NEAR(times[1], 500, 80);
  EXPECT_NEAR(times[2], 500, 80);
}

std::string described(const Workload& workload, const std::string& label) {
  for (const auto& [name, value] : workload.describe()) {
    if (name == label) return value;
  }
  return {};
}

TEST(MpnnWorkload, structures_with_similar_sequences_are_held_out_together) {
  std::vector<Structure> structures;
  for (int i = 0; i < 12; ++i) {
    Structure structure = of_one_chain("s" + std::to_string(i), -1);
    // Each sequence is there twice.
    for (size_t at = 0; at < structure.chains[0].positions.size(); ++at) {
      structure.chains[0].positions[at].type =
          static_cast<uint8_t>((at * at + at * static_cast<size_t>(1 + i / 2)) % 19 + (at % 2));
    }
    structures.push_back(structure);
  }
  const auto workload = mpnn_workload(structures, "0.3");
  EXPECT_EQ(described(*workload, "validated on"), "4, held out by 6 groups of similar sequences");
  const auto source = workload->batches({.split = Split::kTrain, .seed = kMpnnSeed, .global_batch = 10'000}).value();
  EXPECT_EQ(source->batch(0, 0).size(), 8U) << "an epoch takes all that are trained on";
}

TEST(MpnnWorkload, takes_one_member_of_each_cluster_and_others_in_other_epochs) {
  const auto workload = mpnn_workload({of_one_chain("1aaa", 7), of_one_chain("1bbb", 9), of_one_chain("1ccc", 7)});
  const auto source = workload->batches({.split = Split::kTrain, .seed = kMpnnSeed, .global_batch = 1000}).value();
  std::map<int64_t, int> times;  // by sample
  for (int64_t epoch = 0; epoch < 30; ++epoch) {
    std::set<int64_t> taken;
    for (int64_t i = 0; i < source->steps(epoch); ++i) {
      for (const int64_t sample : source->batch(epoch, i)) taken.insert(sample);
    }
    EXPECT_EQ(taken.size(), 2U) << epoch;
    for (const int64_t sample : taken) ++times[sample];
  }
  EXPECT_THAT(times, UnorderedElementsAre(Pair(0, Gt(5)), Pair(1, 30), Pair(2, Gt(5))));
}

TEST(MpnnWorkload, lists_the_structures_that_are_held_out_where_there_are_any) {
  const std::vector<Structure> structures = {of_one_chain("1aaa", 7), of_one_chain("1bbb", 9)};
  EXPECT_THAT(mpnn_workload(structures, "0.5")->outputs({}), ElementsAre("epoch_last.pt", "held_out.txt"));
  EXPECT_THAT(mpnn_workload(structures, "0")->outputs({}), ElementsAre("epoch_last.pt"));
}

// As the training set is without valid_clusters.txt.
TEST(MpnnWorkload, holds_out_whole_clusters_where_no_list_names_any) {
  std::vector<Structure> structures;
  for (int64_t i = 0; i < 12; ++i) structures.push_back(of_one_chain("1aa" + std::to_string(i), i % 4));
  const auto workload = mpnn_workload(structures, "0.25");
  const auto clusters_of = [&](Split split) {
    std::set<int64_t> clusters;
    const auto source = workload->batches({.split = split, .seed = kMpnnSeed, .global_batch = 1000}).value();
    for (int64_t epoch = 0; epoch < 10; ++epoch) {
      for (int64_t i = 0; i < source->steps(epoch); ++i) {
        for (const int64_t sample : source->batch(epoch, i)) clusters.insert(sample % 4);
      }
    }
    return clusters;
  };
  const std::set<int64_t> trained = clusters_of(Split::kTrain);
  const std::set<int64_t> validated = clusters_of(Split::kValidation);
  EXPECT_EQ(trained.size(), 3U);
  ASSERT_EQ(validated.size(), 1U);
  EXPECT_FALSE(trained.contains(*validated.begin()));
}

TEST(MpnnWorkload, adds_noise_to_the_structures_that_it_trains_on_and_to_no_others) {
  const auto workload = mpnn_workload({of_one_chain("1aaa", 7), of_one_chain("1bbb", 9, ChainSplit::kValidation)});
  const auto noise = [&](int64_t sample) {
    return batch_of_sample(*workload, sample, 0)["noise_BL4C"].std().item<double>();
  };
  EXPECT_NEAR(noise(0), 0.2, 0.05);
  EXPECT_EQ(noise(1), 0.0);
}

// The loop never takes NaN for the best (counters_test.cc).
TEST(MpnnWorkload, has_no_perplexity_where_no_held_out_residue_can_be_predicted) {
  Structure held_out = of_one_chain("1bbb", 9, ChainSplit::kValidation);
  for (Position& position : held_out.chains[0].positions) position.backbone[3] = kMissingAtom;
  held_out.chains.push_back(residues_along_a_line("B", 20, 7));  // is seen
  group_chains(held_out);
  const auto workload = mpnn_workload({of_one_chain("1aaa", 7), held_out});
  workload->initialize(kMpnnSeed);
  EvaluationShard shard;
  shard.samples_at_once = 1000;
  shard.loss = [&](const DeviceBatch& batch) { return workload->loss(batch); };
  const Result<std::vector<MetricSum>> totals = workload->evaluate(shard);
  ASSERT_TRUE(totals.ok()) << totals.error().message;
  for (const auto& [name, value] : workload->figures(*totals)) EXPECT_TRUE(std::isnan(value)) << name << " " << value;
}

}  // namespace
}  // namespace lockstep
