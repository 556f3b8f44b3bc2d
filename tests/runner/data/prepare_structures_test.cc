#include "runner/models/protein/data/prepare_structures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "runner/data/found_files.h"
#include "tests/runner/data/pdb_text.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int kFiles = 200;  // more than there are parts

// s000.pdb … with chains of different lengths, some of them in a folder of their own; two broken ones.
void write_files(const TemporaryFolder& folder) {
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = std::string(i % 2 == 0 ? "pdbs/" : "pdbs/more/") + "s" + std::to_string(1000 + i) + ".pdb";
    folder.write(name, i == 17 ? "END\n" : i == 90 ? "" : pdb_chain(1 + i % 7));
  }
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    names.push_back(entry.path().lexically_relative(folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class PrepareStructures : public testing::Test {
 protected:
  TemporaryFolder folder_;
  PosixFileSystem fs_;

  Result<PreparedStructures> prepare(const PrepareOptions& options = {.threads = 3}) {
    return prepare_structures(fs_, folder_.file("pdbs"), folder_.file("cache"), options);
  }
};

TEST_F(PrepareStructures, reads_a_folder_in_order_and_names_the_files_it_skips) {
  write_files(folder_);
  int64_t last_done = 0;
  const Result<PreparedStructures> prepared = prepare({.threads = 3, .progress = [&](int64_t done, int64_t total) {
                                                         EXPECT_GE(done, last_done);
                                                         EXPECT_TRUE(total == kFiles || total == 0);
                                                         last_done = done;
                                                         return true;
                                                       }});
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(last_done, kFiles);
  EXPECT_EQ(prepared->summary, "200 structure files (.pdb 200)");
  EXPECT_FALSE(prepared->was_there);
  EXPECT_EQ(prepared->cache.size(), kFiles - 2);
  EXPECT_EQ(prepared->cache.structure(0)->name, "s1001");  // "more/s1001.pdb" comes before "s1000.pdb"
  ASSERT_EQ(prepared->cache.skipped().size(), 2U);
  EXPECT_EQ(prepared->cache.skipped()[0].file, "more/s1017.pdb");
  EXPECT_THAT(prepared->cache.skipped()[0].reason, HasSubstr("no ATOM record"));
  EXPECT_EQ(prepared->cache.skipped()[1].reason, "is empty");
  EXPECT_EQ(files_in(folder_.file("cache")), (std::vector<std::string>{base_name(prepared->path)}));
}

TEST_F(PrepareStructures, an_unchanged_folder_is_opened_and_a_changed_one_read_again) {
  write_files(folder_);
  const Result<PreparedStructures> first = prepare();
  const Result<PreparedStructures> second = prepare();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(second->was_there);
  EXPECT_EQ(second->path, first->path);
  EXPECT_EQ(second->cache.skipped().size(), 2U);
  folder_.write("pdbs/s1000.pdb", pdb_chain(9));
  const Result<PreparedStructures> third = prepare();
  ASSERT_TRUE(third.ok());
  EXPECT_FALSE(third->was_there);
  EXPECT_NE(third->path, first->path);
  EXPECT_NE(third->cache.digest(), first->cache.digest());
}

TEST_F(PrepareStructures, the_bytes_do_not_depend_on_the_number_of_threads_nor_on_the_place) {
  write_files(folder_);
  const Result<PreparedStructures> one = prepare({.threads = 1});
  const Result<PreparedStructures> memory = prepare_structures(fs_, folder_.file("pdbs"), "", {.threads = 4});
  ASSERT_TRUE(one.ok() && memory.ok());
  EXPECT_EQ(memory->path, "");
  EXPECT_EQ(memory->cache.digest(), one->cache.digest());
}

TEST_F(PrepareStructures, one_that_was_stopped_goes_on_where_it_was) {
  write_files(folder_);
  const Result<PreparedStructures> stopped =
      prepare({.threads = 1, .progress = [&](int64_t done, int64_t) { return done < 20; }});
  if (stopped.ok()) GTEST_SKIP() << "the machine read all files between two looks";
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  EXPECT_THAT(stopped.error().message, HasSubstr("the next start continues from it"));
  const Result<PreparedStructures> again = prepare();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->cache.size(), kFiles - 2);
}

// What a killed process leaves behind: whole parts, a part that is cut off, the temporary file of another one.
TEST_F(PrepareStructures, finished_parts_of_a_killed_one_are_used_and_damaged_ones_made_again) {
  write_files(folder_);
  FillingDisk filling(fs_, 10);
  const Result<PreparedStructures> full =
      prepare_structures(filling, folder_.file("pdbs"), folder_.file("cache"), {.threads = 1});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(full.error().message, HasSubstr("No space left on device"));
  EXPECT_THAT(full.error().message, HasSubstr(folder_.file("cache")));
  EXPECT_THAT(full.error().message, HasSubstr("--cache_dir"));
  std::vector<std::string> parts;
  for (const std::string& name : files_in(folder_.file("cache"))) {
    if (name.find("/part-") != std::string::npos) parts.push_back(folder_.file("cache/" + name));
  }
  ASSERT_EQ(parts.size(), 10U);
  std::filesystem::resize_file(parts[3], std::filesystem::file_size(parts[3]) / 2);
  // The nine whole parts are not written again: each part left and the cache itself is one file.
  const auto all_parts = (kFiles + 3) / 4;  // of four files each
  FillingDisk rest(fs_, all_parts - 9 + 1);
  const Result<PreparedStructures> again =
      prepare_structures(rest, folder_.file("pdbs"), folder_.file("cache"), {.threads = 2});
  ASSERT_TRUE(again.ok()) << again.error().message;
  const Result<PreparedStructures> memory = prepare_structures(fs_, folder_.file("pdbs"), "", {});
  EXPECT_EQ(again->cache.digest(), memory->cache.digest());
  EXPECT_EQ(files_in(folder_.file("cache")).size(), 1U);
}

// Otherwise a process would fail to list the folder while another one removes the parts that are not needed any more.
TEST_F(PrepareStructures, a_listing_of_the_folder_that_is_also_the_caches_leaves_out_the_parts) {
  write_files(folder_);
  FillingDisk filling(fs_, 10);
  ASSERT_FALSE(prepare_structures(filling, folder_.file("pdbs"), folder_.file("pdbs"), {.threads = 1}).ok());
  ASSERT_GT(files_in(folder_.file("pdbs")).size(), kFiles + 10U);
  std::vector<SkippedFile> left_out;
  const Result<std::vector<FoundFile>> listed = files_below(
      folder_.file("pdbs"), [] {}, left_out);
  ASSERT_TRUE(listed.ok());
  EXPECT_TRUE(left_out.empty());
  EXPECT_EQ(listed->size(), static_cast<size_t>(kFiles));
}

TEST_F(PrepareStructures, two_at_once_end_with_the_same_cache) {
  write_files(folder_);
  std::vector<std::string> digests(4);
  {
    std::vector<std::jthread> threads;
    for (std::string& digest : digests) {
      threads.emplace_back([&] {
        const Result<PreparedStructures> prepared = prepare({.threads = 2});
        digest = prepared.ok() ? prepared->cache.digest() : prepared.error().message;
      });
    }
  }
  for (const std::string& digest : digests) EXPECT_EQ(digest, digests[0]);
  EXPECT_EQ(digests[0].size(), 64U);
}

TEST_F(PrepareStructures, a_cache_that_is_damaged_or_of_another_version_is_made_again) {
  write_files(folder_);
  const Result<PreparedStructures> first = prepare();
  ASSERT_TRUE(first.ok());
  const std::string whole = contents(first->path);
  std::string of_another_version = whole;
  of_another_version[8] = static_cast<char>(kStructureCache.version + 1);
  for (const std::string& bytes : {whole.substr(0, 1000), of_another_version}) {
    folder_.write("cache/" + base_name(first->path), bytes);
    const Result<PreparedStructures> again = prepare();
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_FALSE(again->was_there);
    EXPECT_EQ(again->cache.digest(), first->cache.digest());
    EXPECT_EQ(contents(first->path), whole);
  }
}

TEST_F(PrepareStructures, files_of_one_name_are_told_apart_by_their_paths) {
  folder_.write("pdbs/a/1.pdb", pdb_chain(1));
  folder_.write("pdbs/b/1.pdb", pdb_chain(2));
  folder_.write("pdbs/2.ent", pdb_chain(3));
  const Result<PreparedStructures> prepared = prepare();
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(prepared->summary, "3 structure files (.ent 1, .pdb 2)");
  EXPECT_EQ(prepared->cache.structure(0)->name, "2");
  EXPECT_EQ(prepared->cache.structure(1)->name, "a/1.pdb");
}

TEST_F(PrepareStructures, one_file_and_links_to_files_are_read) {
  const std::string file = folder_.write("one.pdb", pdb_chain(4));
  const Result<PreparedStructures> alone = prepare_structures(fs_, file, "", {});
  ASSERT_TRUE(alone.ok()) << alone.error().message;
  EXPECT_EQ(alone->cache.structure(0)->name, "one");
  std::filesystem::create_directories(folder_.file("pdbs"));
  std::filesystem::create_symlink(file, folder_.file("pdbs/linked.pdb"));
  const Result<PreparedStructures> linked = prepare();
  ASSERT_TRUE(linked.ok()) << linked.error().message;
  EXPECT_EQ(linked->cache.structure(0)->name, "linked");
}

std::vector<ChainSplit> splits_in(const StructureCache& cache) {
  std::vector<ChainSplit> splits;
  for (int64_t i = 0; i < cache.size(); ++i) splits.push_back(cache.structure(i)->chains.front().split);
  return splits;
}

TEST_F(PrepareStructures, lists_divide_the_structures_where_that_is_asked_for) {
  for (const char* name : {"1abc.A.pdb", "1abc.B.pdb", "2abc.pdb", "3abc.pdb"}) {
    folder_.write(std::string("pdbs/") + name, pdb_chain(2));
  }
  folder_.write("pdbs/train.txt", "1abc.A\n2abc.pdb\n");
  folder_.write("pdbs/val.txt", "1abc.B\n");
  const auto prepared = prepare_structures(fs_, folder_.file("pdbs"), "", {}, SplitLists::kUsed);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->summary, "4 structure files (.pdb 4), divided by train.txt, val.txt");
  EXPECT_EQ(splits_in(prepared->cache), (std::vector<ChainSplit>{ChainSplit::kTrain, ChainSplit::kValidation,
                                                                 ChainSplit::kTrain, ChainSplit::kTest}));
  folder_.write("pdbs/test.txt", "1abc.A\n");
  EXPECT_THAT(prepare_structures(fs_, folder_.file("pdbs"), "", {}, SplitLists::kUsed).error().message,
              HasSubstr("lists 1abc.A, and so does another of train.txt"));
}

TEST_F(PrepareStructures, names_in_lists_may_have_spaces_and_those_that_fit_nothing_are_named) {
  for (const char* name : {"alpha one.pdb", "beta two.pdb", "gamma.pdb", "delta.pdb"}) {
    folder_.write(std::string("pdbs/") + name, pdb_chain(2));
  }
  folder_.write("pdbs/train.txt",
                "\xEF\xBB\xBF"
                "alpha one\r\n  gamma.pdb \r\n\r\nomega\r\n");
  folder_.write("pdbs/val.txt", "beta two.pdb\n");
  folder_.write("pdbs/notes.md", "x");
  const auto prepared = prepare_structures(fs_, folder_.file("pdbs"), "", {}, SplitLists::kUsed);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->summary,
            "4 structure files (.pdb 4), divided by train.txt, val.txt; 1 other file (.md 1) is not read");
  EXPECT_EQ(splits_in(prepared->cache), (std::vector<ChainSplit>{ChainSplit::kTrain, ChainSplit::kValidation,
                                                                 ChainSplit::kTest, ChainSplit::kTrain}));
  EXPECT_THAT(
      prepared->remarks,
      testing::ElementsAre(SkippedFile{"train.txt", "1 name in it fits no structure here: omega"},
                           SkippedFile{"train.txt, val.txt", "1 structure that no list names is not used: delta"}));
}

TEST_F(PrepareStructures, remarks_of_the_readers_are_kept_in_the_cache) {
  folder_.write("pdbs/a.pdb", pdb_chain(2));
  folder_.write("pdbs/b.pdb",
                "MODEL        1\n" + pdb_chain(2) + "ENDMDL\nMODEL        2\n" + pdb_chain(2) + "ENDMDL\n");
  folder_.write("pdbs/c.pdb", "END\n");
  std::filesystem::create_symlink("/nowhere/d.pdb", folder_.file("pdbs/d.pdb"));
  for (const bool was_there : {false, true}) {
    const Result<PreparedStructures> prepared = prepare();
    ASSERT_TRUE(prepared.ok()) << prepared.error().message;
    EXPECT_EQ(prepared->was_there, was_there);
    EXPECT_THAT(prepared->cache.remarks(),
                testing::ElementsAre(SkippedFile{"b", "only the first of 2 models is read"}));
    EXPECT_EQ(prepared->cache.skipped().size(), 1U);
    EXPECT_THAT(prepared->remarks,
                testing::ElementsAre(SkippedFile{"d.pdb", "is a link to /nowhere/d.pdb, which does not exist"}));
  }
}

TEST_F(PrepareStructures, lists_that_are_not_asked_for_are_not_read_and_the_summary_says_so) {
  folder_.write("pdbs/1abc.pdb", pdb_chain(2));
  for (const char* name : {"train.txt", "val.txt"}) folder_.write(std::string("pdbs/") + name, "1abc\n");
  const Result<PreparedStructures> prepared = prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->summary,
            "1 structure file (.pdb 1); without --use_predefined_split, train.txt, val.txt are not used");
  EXPECT_EQ(splits_in(prepared->cache), std::vector<ChainSplit>{ChainSplit::kTrain});
  folder_.write("pdbs/val.txt", "2abc\n");
  EXPECT_TRUE(prepare()->was_there) << "the cache does not depend on them";
}

TEST_F(PrepareStructures, generated_structures_stay_in_memory) {
  const Result<PreparedStructures> prepared =
      prepare_structures(fs_, "generated:5:20", folder_.file("cache"), {.threads = 2});
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->path, "");
  EXPECT_EQ(prepared->summary, "5 generated structures of about 20 residues");
  EXPECT_EQ(prepared->cache.size(), 5);
  EXPECT_EQ(prepared->cache.structure(4)->name, "generated-5");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("cache")));
  EXPECT_THAT(prepare_structures(fs_, "generated:0", "", {}).error().message, HasSubstr("generated:200:150"));
}

TEST_F(PrepareStructures, a_place_without_structures_says_what_is_there) {
  EXPECT_THAT(prepare().error().message, HasSubstr("does not exist"));
  EXPECT_EQ(prepare().error().code, ErrorCode::kNotFound);
  std::filesystem::create_directories(folder_.file("pdbs"));
  EXPECT_THAT(prepare().error().message, HasSubstr("found no files, expected .pdb"));
  folder_.write("pdbs/a.txt", "x");
  folder_.write("pdbs/b.jpg", "x");
  folder_.write("pdbs/c.jpg", "x");
  EXPECT_THAT(prepare().error().message, HasSubstr("found 3 files (.jpg 2, .txt 1), expected .pdb"));
  EXPECT_THAT(prepare_structures(fs_, folder_.file("pdbs/a.txt"), "", {}).error().message, HasSubstr("(.txt 1)"));
}

TEST_F(PrepareStructures, files_that_all_are_broken_are_an_error_with_reasons) {
  for (const char* name : {"a", "b", "c", "d", "e"}) folder_.write(std::string("pdbs/") + name + ".pdb", "END\n");
  const Result<PreparedStructures> prepared = prepare();
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(prepared.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(prepared.error().message, HasSubstr("none of 5 structure files (.pdb 5) could be read"));
  EXPECT_THAT(prepared.error().message, HasSubstr("a.pdb: has no ATOM record"));
  EXPECT_THAT(prepared.error().message, HasSubstr("and 2 more"));
}

TEST_F(PrepareStructures, a_folder_that_cannot_be_written_is_named_with_what_to_do) {
  folder_.write("pdbs/a.pdb", pdb_chain(2));
  folder_.write("file", "");
  const Result<PreparedStructures> prepared = prepare_structures(fs_, folder_.file("pdbs"), folder_.file("file/cache"),
                                                                 {.cache_flags = "--cache_dir FOLDER --variant mpnn"});
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(prepared.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(prepared.error().message, HasSubstr(folder_.file("file/cache")));
  EXPECT_THAT(prepared.error().message, HasSubstr("another folder with --cache_dir FOLDER --variant mpnn"));
}

// Call 1: the volume is mounted read-only from the beginning. Call 20: it becomes read-only while the cache is written.
TEST_F(PrepareStructures, a_read_only_volume_says_so_and_names_the_flag_for_another_folder) {
  write_files(folder_);
  for (const int at_call : {1, 20}) {
    FaultFileSystem read_only(fs_, FaultFileSystem::Fault::kFailForever, at_call, EROFS);
    const auto refused = prepare_structures(read_only, folder_.file("pdbs"), folder_.file("cache"), {.threads = 2});
    ASSERT_FALSE(refused.ok());
    EXPECT_GT(read_only.failures(), 0);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(refused.error().message, HasSubstr("cannot write the cache of structures in " + folder_.file("cache")));
    EXPECT_THAT(refused.error().message, HasSubstr("Read-only file system"));
    EXPECT_THAT(refused.error().message, HasSubstr("name another folder with --cache_dir"));
  }
  const auto elsewhere = prepare_structures(fs_, folder_.file("pdbs"), folder_.file("another"), {.threads = 2});
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.error().message;
  EXPECT_EQ(elsewhere->cache.size(), kFiles - 2);
}

TEST_F(PrepareStructures, a_cache_on_a_read_only_volume_is_opened) {
  write_files(folder_);
  const Result<PreparedStructures> made = prepare();
  ASSERT_TRUE(made.ok()) << made.error().message;
  FaultFileSystem read_only(fs_, FaultFileSystem::Fault::kFailForever, 1, EROFS);
  const auto again = prepare_structures(read_only, folder_.file("pdbs"), folder_.file("cache"), {.threads = 2});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(again->was_there);
  EXPECT_EQ(again->cache.digest(), made->cache.digest());
  EXPECT_EQ(read_only.calls(), 0);
}

// A network volume fails to give one file, and later it gives it.
TEST_F(PrepareStructures, does_not_leave_out_for_good_what_the_volume_fails_to_give_now) {
  write_files(folder_);
  FaultFileSystem flickering(fs_, FaultFileSystem::Fault::kNone, 0);
  flickering.hold_back("s1040.pdb");
  const Result<PreparedStructures> failed =
      prepare_structures(flickering, folder_.file("pdbs"), folder_.file("cache"), {.threads = 2});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(failed.error().message, HasSubstr("s1040.pdb"));
  const Result<PreparedStructures> prepared =
      prepare_structures(fs_, folder_.file("pdbs"), folder_.file("cache"), {.threads = 2});
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->cache.size(), kFiles - 2);
}

}  // namespace
}  // namespace lockstep
