// What node 0's agent shows of the files in a run's folder, whatever lies there.
#include "runner/agent/run_folder_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runner/contract/run_folder_layout.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string lines(int64_t first, int64_t last, double loss = 1.0) {
  std::string text;
  for (int64_t step = first; step <= last; ++step) {
    text += R"({"step":)" + std::to_string(step) + R"(,"loss":)" + std::to_string(loss) + "}\n";
  }
  return text;
}

class RunFolder : public testing::Test {
 protected:
  void append(const std::string& text) const {
    std::ofstream(folder_.file("metrics.jsonl"), std::ios::app | std::ios::binary) << text;
  }
  Json json_at(const std::string& path) {
    const HttpAnswer answer = reader_.answer(path);
    EXPECT_EQ(answer.code, 200) << answer.body;
    EXPECT_STREQ(answer.type, "application/json");
    Result<Json> parsed = parse_json(answer.body, path);
    EXPECT_TRUE(parsed.ok());
    return parsed.ok() ? *parsed : Json();
  }
  // The steps of the points of the only series.
  std::vector<int64_t> steps() {
    const Json history = json_at("/history");
    std::vector<int64_t> found;
    for (const Json& series : history["series"]) {
      for (const Json& point : series["points"]) found.push_back(point[0].get<int64_t>());
    }
    return found;
  }
  int code(const std::string& path) { return reader_.answer(path).code; }

  TemporaryFolder folder_;
  PosixFileSystem no_links_{PosixFileSystem::Links::kRefused};
  RunFolderReader reader_{no_links_, folder_.path()};
};

TEST_F(RunFolder, has_no_figures_before_there_is_a_file) {
  EXPECT_THAT(steps(), IsEmpty());
  EXPECT_EQ(json_at("/history")["complete"], true);
  EXPECT_THAT(json_at("/outputs")["outputs"], IsEmpty());
  folder_.write("metrics.jsonl", lines(1, 2));
  EXPECT_THAT(steps(), ElementsAre(1, 2));
}

TEST_F(RunFolder, history_follows_the_file_as_it_grows) {
  folder_.write("metrics.jsonl", lines(1, 2));
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  append(lines(3, 3));
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
}

TEST_F(RunFolder, a_last_line_that_is_cut_off_counts_when_it_is_whole) {
  folder_.write("metrics.jsonl", lines(1, 2) + R"({"step":3,"lo)");
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  append("ss\":1}\n");
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
  EXPECT_EQ(json_at("/history")["badLines"], 0);
}

TEST_F(RunFolder, a_half_written_line_may_be_taken_back) {
  folder_.write("metrics.jsonl", lines(1, 2) + R"({"step":3,"lo)");
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  std::filesystem::resize_file(folder_.file("metrics.jsonl"), lines(1, 2).size());
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  append(lines(4, 4));
  EXPECT_THAT(steps(), ElementsAre(1, 2, 4));
  EXPECT_EQ(json_at("/history")["badLines"], 0);
}

TEST_F(RunFolder, a_resumed_run_s_file_takes_the_place_of_the_one_before) {
  folder_.write("metrics.jsonl", lines(1, 9));
  EXPECT_EQ(steps().size(), 9U);
  folder_.write("metrics.jsonl", lines(1, 4, 2.0));  // another file under the old name
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(json_at("/history")["series"][0]["points"][3][1], 2.0);
}

TEST_F(RunFolder, another_reader_shows_the_same_after_a_restart_of_the_agent) {
  folder_.write("metrics.jsonl", lines(1, 5000));
  ASSERT_TRUE(reader_.append_recovery(R"({"cause":"SignalKILL","step":70})").ok());
  ASSERT_TRUE(reader_.append_recovery(R"({"step":90,"resumedStep":89,"origin":"x"})").ok());
  const std::string before = reader_.answer("/history").body;
  EXPECT_THAT(before, HasSubstr("SignalKILL"));
  RunFolderReader after(no_links_, folder_.path());
  EXPECT_EQ(after.answer("/history").body, before);
}

TEST_F(RunFolder, the_history_of_a_file_that_is_replaced_for_a_moment_stays) {
  folder_.write("metrics.jsonl", lines(1, 3));
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
  std::filesystem::remove(folder_.file("metrics.jsonl"));
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
  folder_.write("metrics.jsonl", lines(1, 1));
  EXPECT_THAT(steps(), ElementsAre(1));
}

TEST_F(RunFolder, files_that_were_moved_aside_come_first) {
  folder_.write("metrics.jsonl.1", lines(1, 3));
  folder_.write("metrics.jsonl.2", lines(3, 5, 2.0));  // went on from step 2
  folder_.write("metrics.jsonl", lines(6, 6));
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(json_at("/history")["series"][0]["points"][2][1], 2.0);
}

TEST_F(RunFolder, a_huge_file_is_read_by_several_requests) {
  const std::string text = lines(1, 20'000);
  folder_.write("metrics.jsonl", text);
  reader_ = RunFolderReader(no_links_, folder_.path(), text.size() / 4);
  for (int request = 1; request <= 3; ++request) EXPECT_EQ(json_at("/history")["complete"], false) << request;
  int more = 1;
  while (json_at("/history")["complete"] == false) ASSERT_LT(++more, 5);
  const std::vector<int64_t> found = steps();
  EXPECT_LE(found.size(), kSeriesPointsMax);
  EXPECT_EQ(found.front(), 1);
  EXPECT_EQ(found.back(), 20'000);
}

TEST_F(RunFolder, lines_that_cannot_be_read_are_counted_and_left_out) {
  folder_.write("metrics.jsonl", "no json\n" + lines(1, 1) + std::string(3 * kFileLineMax, 'x') + "\n" + lines(2, 2) +
                                     std::string(10, '\0') + "\n");
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  EXPECT_EQ(json_at("/history")["badLines"], 3);
}

TEST_F(RunFolder, nothing_but_a_plain_file_is_read) {
  ASSERT_EQ(::mkfifo(folder_.file("metrics.jsonl").c_str(), 0600), 0);
  const HttpAnswer answer = reader_.answer("/history");
  EXPECT_EQ(answer.code, 503);
  EXPECT_THAT(answer.body, HasSubstr("is no plain file"));
  std::filesystem::remove(folder_.file("metrics.jsonl"));
  folder_.write("elsewhere", lines(1, 1));
  std::filesystem::create_symlink(folder_.file("elsewhere"), folder_.file("metrics.jsonl"));
  EXPECT_EQ(code("/history"), 503);
}

TEST_F(RunFolder, a_recovery_that_cannot_be_written_is_an_error) {
  std::filesystem::create_directory(folder_.file("recoveries.jsonl"));
  const Status written = reader_.append_recovery("{}");
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().message, HasSubstr("recoveries.jsonl"));
  EXPECT_EQ(RunFolderReader(no_links_, folder_.file("nowhere")).append_recovery("{}").error().code,
            ErrorCode::kNotFound);
}

TEST_F(RunFolder, a_full_disk_and_a_volume_that_fails_are_errors_that_name_the_file) {
  FaultFileSystem full(no_links_, FaultFileSystem::Fault::kFailOnce, 2, ENOSPC);  // the write after the open
  RunFolderReader reader(full, folder_.path());
  EXPECT_THAT(reader.append_recovery("{}").error().message,
              AllOf(HasSubstr(folder_.file("recoveries.jsonl")), HasSubstr("No space left on device")));
  EXPECT_TRUE(reader.append_recovery("{}").ok());
  EXPECT_EQ(contents(folder_.file("recoveries.jsonl")), "{}\n");
  append(lines(1, 9));
  LostWhileReading lost(no_links_, 10);
  RunFolderReader of_lost(lost, folder_.path());
  (void)of_lost.answer("/history");  // a part of the first line
  EXPECT_EQ(of_lost.answer("/history").code, 503);
  EXPECT_THAT(of_lost.answer("/history").body, AllOf(HasSubstr("metrics.jsonl"), HasSubstr("Input/output error")));
}

TEST_F(RunFolder, outputs_are_listed_the_newest_first) {
  folder_.write("outputs/step-00000010/b.png", "b");
  folder_.write("outputs/step-00000010/a.txt", "a");
  folder_.write("outputs/step-00000200/a.txt", "a");
  folder_.write("outputs/step-00000200/.hidden.txt", "");
  folder_.write("outputs/step-00000200/model.bin", "");
  folder_.write("outputs/step-3/a.txt", "");
  folder_.write("outputs/a.txt", "");
  std::filesystem::create_directories(folder_.file("outputs/step-00000200/folder.png"));
  EXPECT_EQ(dump_line(json_at("/outputs")),
            R"({"outputs":[{"name":"a.txt","path":"outputs/step-00000200/a.txt","step":200},)"
            R"({"name":"a.txt","path":"outputs/step-00000010/a.txt","step":10},)"
            R"({"name":"b.png","path":"outputs/step-00000010/b.png","step":10}]})");
}

TEST_F(RunFolder, no_more_outputs_are_listed_than_a_page_can_show) {
  for (int64_t step = 1; step <= 150; ++step) {
    for (const char* name : {"a.txt", "b.txt"}) folder_.write(output_path({.step = step, .name = name}), "");
  }
  const Json outputs = json_at("/outputs")["outputs"];
  ASSERT_EQ(outputs.size(), kOutputsListedMax);
  EXPECT_EQ(outputs.front()["step"], 150);
  EXPECT_EQ(outputs.back()["step"], 51);
}

TEST_F(RunFolder, an_output_is_served_as_what_it_is) {
  const std::string bytes("\x89PNG\0\r\n", 7);
  folder_.write("outputs/step-00000010/a.png", bytes);
  folder_.write("outputs/step-00000010/a.svg", "<svg/>");
  folder_.write("outputs/step-00000010/a.md", "# a");
  const HttpAnswer picture = reader_.answer("/outputs/step-00000010/a.png");
  EXPECT_EQ(picture.code, 200);
  EXPECT_STREQ(picture.type, "image/png");
  EXPECT_EQ(picture.body, bytes);
  EXPECT_TRUE(picture.runs_no_scripts);
  EXPECT_STREQ(reader_.answer("/outputs/step-00000010/a.svg").type, "image/svg+xml");
  EXPECT_STREQ(reader_.answer("/outputs/step-00000010/a.md").type, "text/plain; charset=utf-8");
}

TEST_F(RunFolder, nothing_outside_of_outputs_is_served) {
  folder_.write("step-00000010/state.json", "{}");
  folder_.write("secret.txt", "secret");
  folder_.write("outputs/step-00000010/a.png", "a");
  for (const char* path : {"/outputs/", "/outputs/step-00000010", "/outputs/step-00000010/", "/outputs/../secret.txt",
                           "/outputs/step-00000010/../../secret.txt", "/outputs/step-00000010/..%2f..%2fsecret.txt",
                           "/outputs/%2e%2e/secret.txt", "/outputs//etc/hostname", "/outputs/step-00000010/a.png/",
                           "/outputs/step-00000010/b.png", "/outputs/../step-00000010/state.json",
                           "/outputs/step-00000010/a.html", "/secret.txt", "/outputsstep", ""}) {
    EXPECT_EQ(code(path), 404) << path;
  }
}

TEST_F(RunFolder, no_link_and_no_pipe_is_served) {
  folder_.write("secret.txt", "secret");
  folder_.write("outputs/step-00000010/a.txt", "a");
  std::filesystem::create_symlink(folder_.file("secret.txt"), folder_.file("outputs/step-00000010/b.txt"));
  std::filesystem::create_directory_symlink(folder_.path(), folder_.file("outputs/step-00000011"));
  ASSERT_EQ(::mkfifo(folder_.file("outputs/step-00000010/c.txt").c_str(), 0600), 0);
  for (const char* path :
       {"/outputs/step-00000010/b.txt", "/outputs/step-00000010/c.txt", "/outputs/step-00000011/secret.txt"}) {
    EXPECT_EQ(code(path), 404) << path;
  }
  EXPECT_EQ(json_at("/outputs")["outputs"].size(), 1U);
}

TEST_F(RunFolder, an_output_that_is_too_large_is_not_served) {
  const std::string path = folder_.write("outputs/step-00000010/a.txt", "");
  std::filesystem::resize_file(path, kOutputBytesMax);
  EXPECT_EQ(code("/outputs/step-00000010/a.txt"), 200);
  std::filesystem::resize_file(path, kOutputBytesMax + 1);
  const HttpAnswer answer = reader_.answer("/outputs/step-00000010/a.txt");
  EXPECT_EQ(answer.code, 403);
  EXPECT_THAT(answer.body, HasSubstr("has 4194305 bytes, and at most 4194304 are served"));
}

}  // namespace
}  // namespace lockstep
