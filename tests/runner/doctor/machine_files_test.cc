#include "runner/doctor/machine_files.h"

#include <gtest/gtest.h>

namespace lockstep::doctor {
namespace {

TEST(MachineFiles, the_page_cache_does_not_count_as_memory_in_use) {
  EXPECT_EQ(memory_left("1000\n", "700\n", "anon 300\ninactive_file 400\n"), 700U);
  EXPECT_EQ(memory_left("1000\n", "1200\n", ""), 0U);
  EXPECT_EQ(memory_left("max\n", "700\n", ""), std::nullopt);
  EXPECT_EQ(memory_left("9223372036854771712\n", "700\n", ""), std::nullopt);
  EXPECT_EQ(memory_left("", "", ""), std::nullopt);
}

TEST(MachineFiles, reads_memory_and_flags) {
  EXPECT_EQ(available_memory("MemTotal: 9 kB\nMemAvailable:    4 kB\n"), 4096U);
  EXPECT_EQ(available_memory("MemTotal: 9 kB\n"), 0U);
  EXPECT_TRUE(has_cpu_flag("model : x\nflags\t\t: fpu avx2 sse\n", "avx2"));
  EXPECT_FALSE(has_cpu_flag("flags\t\t: fpu avx2x\n", "avx2"));
  EXPECT_FALSE(has_cpu_flag("", "avx2"));
}

TEST(MachineFiles, counts_the_threads_of_one_user_only) {
  constexpr const char* kStatus = "Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t7\t7\t7\t7\nThreads:\t12\n";
  EXPECT_EQ(threads_of_user(kStatus, 1000), 12U);
  EXPECT_EQ(threads_of_user(kStatus, 0), 0U);
  EXPECT_EQ(threads_of_user("", 1000), 0U);
  EXPECT_EQ(threads_of_user("Uid:\n", 0), 0U);
}

TEST(MachineFiles, finds_who_listens_and_not_who_talks) {
  constexpr const char* kTcp =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
      "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000 100\n"
      "   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000 20\n"
      "   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000 20\n"
      "garbage\n";
  EXPECT_EQ(listening_inodes(kTcp, 8080), std::vector<uint64_t>{4711});
  EXPECT_EQ(listening_inodes(kTcp, 80), std::vector<uint64_t>{});
  EXPECT_EQ(listening_inodes("  0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A "
                             "00000000:00000000 00:00000000 00000000     0        0 99 1 0000 100\n",
                             8080),
            std::vector<uint64_t>{99});
}

TEST(MachineFiles, the_longest_mount_point_above_a_path_holds_it) {
  constexpr const char* kMounts =
      "/dev/vda / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\nserver:/x /mnt/my\\040data nfs4 rw 0 0\n"
      "overlay /run overlay rw 0 0\nshort\n";
  EXPECT_EQ(filesystem_of(kMounts, "/home/me"), "ext4");
  EXPECT_EQ(filesystem_of(kMounts, "/runner"), "ext4");
  EXPECT_EQ(filesystem_of(kMounts, "/run/x"), "overlay");
  EXPECT_EQ(filesystem_of(kMounts, "/mnt/my data/ckpt"), "nfs4");
  EXPECT_EQ(filesystem_of("", "/"), "unknown");
}

}  // namespace
}  // namespace lockstep::doctor
