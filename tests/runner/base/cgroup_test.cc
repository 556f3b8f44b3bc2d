#include "runner/base/cgroup.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

TEST(Cgroups, finds_the_place_in_the_cgroups_of_both_versions) {
  EXPECT_EQ(parse_cgroup_paths("0::/kubepods.slice/pod7\n").unified, "/kubepods.slice/pod7");
  const CgroupPaths old = parse_cgroup_paths("8:pids:/a\n4:memory:/b\n3:cpuset:/x\n2:cpu,cpuacct:/c:d\n0::/\n");
  EXPECT_EQ(old.pids, "/a");
  EXPECT_EQ(old.memory, "/b");
  EXPECT_EQ(old.cpu, "/c:d");
  EXPECT_EQ(old.unified, "/");
  EXPECT_EQ(parse_cgroup_paths("nothing\n:\n").unified, "");
}

TEST(Cgroups, a_quota_is_in_cores) {
  EXPECT_EQ(cpu_quota("150000 100000\n"), 1.5);
  EXPECT_EQ(cpu_quota("max 100000\n"), std::nullopt);
  EXPECT_EQ(cpu_quota("-1\n 100000\n"), std::nullopt);
  EXPECT_EQ(cpu_quota("100000 0\n"), std::nullopt);
  EXPECT_EQ(cpu_quota("100000 100000 100000"), std::nullopt);
  EXPECT_EQ(cpu_quota(" "), std::nullopt);
}

TEST(Cgroups, of_version_2_the_tightest_quota_above_this_process_counts) {
  const TemporaryFolder dir;
  const fs::path root = dir.path();
  dir.write("cgroup.controllers", "cpu memory pids\n");
  dir.write("pod/worker/cpu.max", "max 100000\n");
  dir.write("pod/cpu.max", "150000 100000\n");
  dir.write("place", "0::/pod/worker\n");
  const Cgroups groups(root, root / "place");
  EXPECT_TRUE(groups.is_unified());
  EXPECT_EQ(groups.cores_allowed(), 1.5);
  EXPECT_EQ(groups.of_memory(), (std::vector<fs::path>{root / "pod/worker", root / "pod", root}));
  dir.write("pod/worker/cpu.max", "50000 100000\n");
  EXPECT_EQ(groups.cores_allowed(), 0.5) << "it is read anew";
  EXPECT_EQ(groups.memory_allowed(), std::nullopt);
  dir.write("pod/worker/memory.max", "max\n");
  dir.write("pod/memory.max", "4294967296\n");
  EXPECT_EQ(groups.memory_allowed(), int64_t{4} << 30U);
}

TEST(Cgroups, of_version_1_each_controller_has_a_tree) {
  const TemporaryFolder dir;
  const fs::path root = dir.path();
  dir.write("cpu/pod/cpu.cfs_quota_us", "300000\n");
  dir.write("cpu/pod/cpu.cfs_period_us", "100000\n");
  dir.write("cpu/cpu.cfs_quota_us", "-1\n");
  dir.write("cpu/cpu.cfs_period_us", "100000\n");
  dir.write("place", "4:memory:/other\n2:cpu,cpuacct:/pod\n");
  const Cgroups groups(root, root / "place");
  EXPECT_FALSE(groups.is_unified());
  EXPECT_EQ(groups.cores_allowed(), 3.0);
  EXPECT_TRUE(groups.of_memory().empty());
  dir.write("memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  EXPECT_GT(groups.memory_allowed().value_or(0), int64_t{1} << 60U);
}

// A container sees its own group as the root, but reads the name that the group has on the host.
TEST(Cgroups, a_place_that_is_not_there_leaves_the_root) {
  const TemporaryFolder dir;
  const fs::path root = dir.path();
  dir.write("cgroup.controllers", "cpu\n");
  dir.write("cpu.max", "200000 100000\n");
  dir.write("place", "0::/kubepods/pod7/container\n");
  EXPECT_EQ(Cgroups(root, root / "place").cores_allowed(), 2.0);
  EXPECT_EQ(Cgroups(root / "nothing", root / "nothing").cores_allowed(), std::nullopt);
}

TEST(Memory, that_may_be_used_is_some) { EXPECT_GT(usable_memory_bytes(), int64_t{1} << 20U); }

TEST(Cores, are_whole_and_at_least_one) {
  EXPECT_EQ(whole_cores(8, std::nullopt), 8);
  EXPECT_EQ(whole_cores(8, 4.5), 4);
  EXPECT_EQ(whole_cores(8, 1.999), 2);
  EXPECT_EQ(whole_cores(8, 0.2), 1);
  EXPECT_EQ(whole_cores(2, 1e12), 2);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), cores_by_affinity());
}

}  // namespace
}  // namespace lockstep
