#include "runner/models/jit/data/prepare_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "runner/base/forwarding_file_system.h"
#include "tests/runner/data/image_bytes.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kImages = 150;  // more than there are parts
constexpr int64_t kSide = 16;

std::vector<std::string> files_below_folder(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    names.push_back(entry.path().lexically_relative(folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class PrepareImages : public testing::Test {
 protected:
  TemporaryFolder folder_;
  PosixFileSystem fs_;

  // cat/ and dog/, JPEG and PNG; two broken ones.
  void write_images() const {
    for (int i = 0; i < kImages; ++i) {
      const std::string name = std::string(i % 2 == 0 ? "images/cat/" : "images/dog/") + "i" + std::to_string(1000 + i);
      if (i == 17) {
        folder_.write(name + ".jpg", test_jpeg(40, 30).substr(0, 400));
      } else if (i == 90) {
        folder_.write(name + ".png", "");
      } else if (i % 3 == 0) {
        folder_.write(name + ".jpg", test_jpeg(20 + i, 40, i % 8));
      } else {
        folder_.write(name + ".png", test_png(20 + i, 40, i % 8));
      }
    }
  }

  Result<PreparedImages> prepare(const PrepareOptions& options = {.threads = 3}) {
    return prepare_images(fs_, folder_.file("images"), kSide, folder_.file("cache"), options);
  }
  std::string message_of(const std::string& path) {
    const Result<PreparedImages> prepared = prepare_images(fs_, path, kSide, "", {.threads = 1});
    return prepared.ok() ? "it was prepared" : prepared.error().message;
  }
};

TEST_F(PrepareImages, reads_class_folders_in_order_and_names_the_files_it_skips) {
  write_images();
  const Result<PreparedImages> prepared = prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  const ImageCache& cache = prepared->cache;
  EXPECT_EQ(prepared->summary, "150 files in 2 classes (.jpg 50, .png 100)");
  EXPECT_FALSE(prepared->was_there);
  EXPECT_EQ(cache.size(), kImages - 2);
  EXPECT_EQ(cache.side(), kSide);
  EXPECT_THAT(cache.classes(), ElementsAre("cat", "dog"));
  EXPECT_EQ(cache.label(0), 0);
  EXPECT_EQ(cache.label(73), 0);
  EXPECT_EQ(cache.label(74), 1);
  ASSERT_EQ(cache.skipped().size(), 2U);
  EXPECT_EQ(cache.skipped()[0], (SkippedFile{"cat/i1090.png", "is empty"}));
  EXPECT_EQ(cache.skipped()[1].file, "dog/i1017.jpg");
  EXPECT_THAT(cache.skipped()[1].reason, HasSubstr("cannot be decoded"));
  EXPECT_EQ(files_below_folder(folder_.file("cache")), (std::vector<std::string>{base_name(prepared->path)}));
}

TEST_F(PrepareImages, an_unchanged_folder_is_opened_and_another_side_is_another_cache) {
  write_images();
  const Result<PreparedImages> first = prepare();
  const Result<PreparedImages> second = prepare();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(second->was_there);
  EXPECT_EQ(second->cache.digest(), first->cache.digest());
  EXPECT_EQ(second->cache.skipped(), first->cache.skipped());
  const auto larger = prepare_images(fs_, folder_.file("images"), 2 * kSide, folder_.file("cache"), {});
  ASSERT_TRUE(larger.ok());
  EXPECT_FALSE(larger->was_there);
  EXPECT_NE(larger->path, first->path);
  folder_.write("images/cat/i1000.jpg", test_jpeg(33, 33));
  const Result<PreparedImages> changed = prepare();
  ASSERT_TRUE(changed.ok());
  EXPECT_FALSE(changed->was_there);
  EXPECT_NE(changed->cache.digest(), first->cache.digest());
}

TEST_F(PrepareImages, a_cache_that_is_cut_off_is_made_again) {
  write_images();
  const Result<PreparedImages> first = prepare();
  ASSERT_TRUE(first.ok());
  const std::string digest = first->cache.digest();
  std::filesystem::resize_file(first->path, 1000);
  const Result<PreparedImages> second = prepare();
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(second->was_there);
  EXPECT_EQ(second->cache.digest(), digest);
}

TEST_F(PrepareImages, a_full_disk_says_so_and_what_was_done_is_used_later) {
  write_images();
  FillingDisk filling(fs_, 10);
  const auto full = prepare_images(filling, folder_.file("images"), kSide, folder_.file("cache"), {.threads = 1});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(full.error().message, HasSubstr("cannot write the cache of images in " + folder_.file("cache")));
  EXPECT_THAT(full.error().message, HasSubstr("No space left on device"));
  const int all_parts = (kImages + 2) / 3;  // of three files each
  FillingDisk rest(fs_, all_parts - 10 + 1);
  const auto again = prepare_images(rest, folder_.file("images"), kSide, folder_.file("cache"), {.threads = 2});
  ASSERT_TRUE(again.ok()) << again.error().message;
  const auto memory = prepare_images(fs_, folder_.file("images"), kSide, "", {});
  EXPECT_EQ(memory->path, "");
  EXPECT_EQ(again->cache.digest(), memory->cache.digest());
}

// Call 1: the volume is mounted read-only from the beginning. Call 20: it becomes read-only while the cache is written.
TEST_F(PrepareImages, a_read_only_volume_says_so_and_names_the_flag_for_another_folder) {
  write_images();
  for (const int at_call : {1, 20}) {
    FaultFileSystem read_only(fs_, FaultFileSystem::Fault::kFailForever, at_call, EROFS);
    const auto refused =
        prepare_images(read_only, folder_.file("images"), kSide, folder_.file("cache"), {.threads = 2});
    ASSERT_FALSE(refused.ok());
    EXPECT_GT(read_only.failures(), 0);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(refused.error().message, HasSubstr("cannot write the cache of images in " + folder_.file("cache")));
    EXPECT_THAT(refused.error().message, HasSubstr("Read-only file system"));
    EXPECT_THAT(refused.error().message, HasSubstr("name another folder with --cache_dir"));
  }
  const auto elsewhere = prepare_images(fs_, folder_.file("images"), kSide, folder_.file("another"), {.threads = 2});
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.error().message;
  EXPECT_EQ(elsewhere->cache.size(), kImages - 2);
}

TEST_F(PrepareImages, a_cache_on_a_read_only_volume_is_opened) {
  write_images();
  const Result<PreparedImages> made = prepare();
  ASSERT_TRUE(made.ok()) << made.error().message;
  FaultFileSystem read_only(fs_, FaultFileSystem::Fault::kFailForever, 1, EROFS);
  const auto again = prepare_images(read_only, folder_.file("images"), kSide, folder_.file("cache"), {.threads = 2});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(again->was_there);
  EXPECT_EQ(again->cache.digest(), made->cache.digest());
  EXPECT_EQ(read_only.calls(), 0);
}

// Three real processes: one is killed after it has written parts of the cache; the other two finish.
TEST_F(PrepareImages, a_killed_process_leaves_what_others_go_on_with) {
  write_images();
  const pid_t killed = ::fork();
  ASSERT_GE(killed, 0);
  if (killed == 0) {
    FillingDisk few(fs_, 5);
    static_cast<void>(prepare_images(few, folder_.file("images"), kSide, folder_.file("cache"), {.threads = 1}));
    ::raise(SIGKILL);
  }
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) ::_exit(prepare({.threads = 1}).ok() ? 0 : 1);
  const Result<PreparedImages> mine = prepare({.threads = 1});
  int status = 0;
  ASSERT_EQ(::waitpid(killed, &status, 0), killed);
  EXPECT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(mine.ok()) << mine.error().message;
  const auto memory = prepare_images(fs_, folder_.file("images"), kSide, "", {});
  EXPECT_EQ(mine->cache.digest(), memory->cache.digest());
  EXPECT_TRUE(prepare().value().was_there);
}

class FailingToRead final : public ForwardingFileSystem {
 public:
  FailingToRead(FileSystem& fs, int error) : ForwardingFileSystem(fs), error_(error) {}
  Result<FileHandle> open_for_read(const std::string& path) override {
    if (path.ends_with("i1040.png")) return error_of_errno(error_, "open", path);
    return ForwardingFileSystem::open_for_read(path);
  }

 private:
  int error_;
};

TEST_F(PrepareImages, a_file_that_the_volume_does_not_give_is_not_left_out_for_good) {
  write_images();
  for (const int error : {EACCES, EIO, ENOENT}) {  // ENOENT: the volume is no longer mounted
    FailingToRead failing(fs_, error);
    const auto failed = prepare_images(failing, folder_.file("images"), kSide, folder_.file("cache"), {.threads = 2});
    ASSERT_FALSE(failed.ok()) << error;
    EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(failed.error().message, HasSubstr("cat/i1040.png"));
    EXPECT_THAT(failed.error().message, HasSubstr("permissions"));
  }
  EXPECT_EQ(prepare()->cache.size(), kImages - 2);
}

TEST_F(PrepareImages, files_alone_have_no_classes) {
  folder_.write("images/b.png", test_png(20, 20, 1));
  folder_.write("images/a.jpg", test_jpeg(20, 20, 2));
  folder_.write("images/.hidden.png", "x");
  folder_.write("images/.git/x.png", "x");
  const Result<PreparedImages> prepared = prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->summary, "2 files (.jpg 1, .png 1)");
  EXPECT_EQ(prepared->cache.size(), 2);
  EXPECT_TRUE(prepared->cache.classes().empty());
  EXPECT_EQ(prepared->cache.label(1), 0);
  EXPECT_TRUE(prepared->cache.skipped().empty());
}

TEST_F(PrepareImages, the_folder_of_the_images_may_be_that_of_the_cache) {
  for (const char* flat_or_in_classes : {"images/a.png", "images/cat/a.png"}) {
    folder_.write(flat_or_in_classes, test_png(20, 20, 1));
    const auto prepare_there = [&] {
      return prepare_images(fs_, folder_.file("images"), kSide, folder_.file("images"), {});
    };
    const auto first = prepare_there();
    ASSERT_TRUE(first.ok()) << first.error().message;
    const auto second = prepare_there();
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_TRUE(second->was_there);
    EXPECT_EQ(second->summary, first->summary);
    std::filesystem::remove_all(folder_.file("images"));
  }
}

TEST_F(PrepareImages, a_train_folder_among_its_like_is_entered_and_any_other_is_a_class) {
  folder_.write("sets/train/cat/a.png", test_png(20, 20));
  folder_.write("sets/train/dog/deep/b.png", test_png(20, 20));
  folder_.write("sets/val/cat/c.png", test_png(20, 20));
  folder_.write("vehicles/train/a.png", test_png(20, 20));
  folder_.write("vehicles/car/a.png", test_png(20, 20));
  const auto sets = prepare_images(fs_, folder_.file("sets"), kSide, "", {});
  ASSERT_TRUE(sets.ok()) << sets.error().message;
  EXPECT_EQ(sets->cache.size(), 2);
  EXPECT_THAT(sets->cache.classes(), ElementsAre("cat", "dog"));
  const auto vehicles = prepare_images(fs_, folder_.file("vehicles"), kSide, "", {});
  ASSERT_TRUE(vehicles.ok());
  EXPECT_THAT(vehicles->cache.classes(), ElementsAre("car", "train"));
}

TEST_F(PrepareImages, class_folders_may_be_links) {
  folder_.write("elsewhere/a.png", test_png(20, 20));
  std::filesystem::create_directories(folder_.file("images"));
  std::filesystem::create_directory_symlink(folder_.file("elsewhere"), folder_.file("images/cat"));
  const Result<PreparedImages> prepared = prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_THAT(prepared->cache.classes(), ElementsAre("cat"));
}

TEST_F(PrepareImages, links_that_lead_nowhere_are_named_and_those_to_folders_are_followed) {
  for (const char* name : {"a", "b", "c", "d"}) folder_.write(std::string("store/") + name + ".png", test_png(20, 20));
  folder_.write("images/cat/one.png", test_png(20, 20));
  folder_.write("images/dog/two.png", test_png(20, 20));
  std::filesystem::create_directory_symlink(folder_.file("store"), folder_.file("images/cat/more"));
  std::filesystem::create_symlink("/store/gone.png", folder_.file("images/cat/gone.png"));
  std::filesystem::create_symlink("/store/bird", folder_.file("images/bird"));
  std::filesystem::create_directory_symlink(folder_.file("images/dog"), folder_.file("images/dog/itself"));
  const Result<PreparedImages> prepared = prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->cache.size(), 6);
  EXPECT_THAT(prepared->cache.classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(prepared->remarks,
              ElementsAre(SkippedFile{"bird", "is a link to /store/bird, which does not exist"},
                          SkippedFile{"cat/gone.png", "is a link to /store/gone.png, which does not exist"},
                          SkippedFile{"dog/itself", "is a link to a folder that it is in"}));
  const auto rows = rows_of_left_out(*prepared, false);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1].second, "cat/gone.png: is a link to /store/gone.png, which does not exist (and 1 more: --verbose)");
  EXPECT_EQ(rows_of_left_out(*prepared, true).size(), 3U);
  EXPECT_EQ(rows_of_left_out(*prepared, true)[2].first, "left out");
}

TEST_F(PrepareImages, a_folder_of_links_that_all_lead_nowhere_says_so) {
  std::filesystem::create_directories(folder_.file("images/cat"));
  std::filesystem::create_symlink("/store/gone.png", folder_.file("images/cat/gone.png"));
  EXPECT_THAT(message_of(folder_.file("images")),
              HasSubstr("found 1 folder without files; left out 1, the first cat/gone.png: is a link to "
                        "/store/gone.png, which does not exist, expected a folder"));
  std::filesystem::create_symlink("/nowhere", folder_.file("link"));
  EXPECT_THAT(message_of(folder_.file("link")), HasSubstr("link is a link to /nowhere, which does not exist"));
}

TEST_F(PrepareImages, names_do_not_say_what_a_file_is) {
  folder_.write("images/cat/really-a-png.jpg", test_png(20, 20));
  folder_.write("images/cat/really-a-jpeg", test_jpeg(20, 20));
  folder_.write("images/cat/labels.txt", "cat\n");
  folder_.write("images/cat/moving.png", "GIF89a....");
  folder_.write("images/readme.png", test_png(20, 20));
  const Result<PreparedImages> prepared = prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->cache.size(), 2);
  EXPECT_THAT(prepared->cache.skipped(),
              ElementsAre(SkippedFile{"cat/labels.txt", "is a text, no image; JPEG and PNG files are read"},
                          SkippedFile{"cat/moving.png", "is a GIF file; JPEG and PNG files are read"},
                          SkippedFile{"readme.png", "lies beside the class folders, in none of them"}));
}

TEST_F(PrepareImages, a_class_without_images_is_named) {
  folder_.write("images/cat/a.png", test_png(20, 20));
  std::filesystem::create_directories(folder_.file("images/dog"));
  EXPECT_EQ(message_of(folder_.file("images")),
            "class folder dog in " + folder_.file("images") +
                " has no image that can be read (it has no files); put images there, or remove the folder");
  folder_.write("images/dog/a.png", "x");
  EXPECT_THAT(message_of(folder_.file("images")), HasSubstr("(such as dog/a.png: is a text, no image"));
}

TEST_F(PrepareImages, a_place_without_images_says_what_is_there) {
  EXPECT_THAT(message_of(folder_.file("images")), HasSubstr("does not exist; expected a folder of JPEG and PNG files"));
  std::filesystem::create_directories(folder_.file("images"));
  EXPECT_THAT(message_of(folder_.file("images")), HasSubstr("found no files, expected a folder"));
  std::filesystem::create_directories(folder_.file("images/cat"));
  EXPECT_THAT(message_of(folder_.file("images")), HasSubstr("found 1 folder without files"));
  folder_.write("images/cat/a.txt", "words\n");
  EXPECT_THAT(message_of(folder_.file("images")),
              HasSubstr("none of 1 file in 1 class (.txt 1) could be read:\n  cat/a.txt: is a text, no image"));
  EXPECT_THAT(message_of(folder_.file("images/cat/a.txt")), HasSubstr("is no folder"));
  EXPECT_THAT(prepare_images(fs_, folder_.file("images"), 0, "", {}).error().message, HasSubstr("expected 1 to 4096"));
}

TEST_F(PrepareImages, a_folder_that_cannot_be_written_is_named_with_what_to_do) {
  folder_.write("images/a.png", test_png(20, 20));
  folder_.write("file", "");
  const auto prepared = prepare_images(fs_, folder_.file("images"), kSide, folder_.file("file/cache"), {});
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(prepared.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(prepared.error().message, HasSubstr("--cache_dir"));
}

TEST_F(PrepareImages, generated_images_stay_in_memory_and_are_the_same_every_time) {
  const auto prepared = prepare_images(fs_, "generated:20:5", kSide, folder_.file("cache"), {.threads = 2});
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(prepared->path, "");
  EXPECT_EQ(prepared->summary, "20 generated images of 5 classes");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("cache")));
  EXPECT_THAT(prepared->cache.classes(), ElementsAre("circle", "square", "triangle", "cross", "ring"));
  EXPECT_EQ(prepared->cache.label(7), 2);
  EXPECT_EQ(prepare_images(fs_, "generated:20:5", kSide, "", {})->cache.digest(), prepared->cache.digest());
  const auto many = prepare_images(fs_, "generated:64:64", kSide, "", {});
  ASSERT_TRUE(many.ok());
  const std::vector<std::string>& names = many->cache.classes();
  EXPECT_EQ(names[0], "red circle");
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 64U);
}

TEST_F(PrepareImages, numbers_of_generated_images_that_cannot_be_are_refused) {
  for (const char* text : {"generated:0", "generated:10:65", "generated:x", "generated:10:", "generated:10:2:3"}) {
    EXPECT_THAT(message_of(text), HasSubstr("is not generated[:COUNT[:CLASSES]] with COUNT from 1 to 1000000 and "
                                            "CLASSES from 1 to 64, such as generated:1000:8"));
  }
  EXPECT_THAT(message_of("generated:3:4"), HasSubstr("3 images cannot be of 4 classes"));
  EXPECT_THAT(message_of("generatedx"), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace lockstep
