#include "operator/kube/resource.h"

#include <gtest/gtest.h>

namespace lockstep::kube {
namespace {

TEST(Resource, paths_follow_the_conventions_of_the_api) {
  EXPECT_EQ(collection_path(kPods, "team-a"), "/api/v1/namespaces/team-a/pods");
  EXPECT_EQ(collection_path(kPods, ""), "/api/v1/pods");
  EXPECT_EQ(collection_path(kTrainJobs, "team-a"), "/apis/lockstep.dev/v1/namespaces/team-a/trainjobs");
  EXPECT_EQ(collection_path(kNodes, ""), "/api/v1/nodes");
  EXPECT_EQ(object_path(kPods, {"team-a", "x-0-0"}), "/api/v1/namespaces/team-a/pods/x-0-0");
  EXPECT_EQ(object_path(kTrainJobs, {"a", "x"}, "status"), "/apis/lockstep.dev/v1/namespaces/a/trainjobs/x/status");
  EXPECT_EQ(object_path(kLeases, {"a", "x"}), "/apis/coordination.k8s.io/v1/namespaces/a/leases/x");
  EXPECT_EQ(object_path(kNetworkPolicies, {"a", "x"}), "/apis/networking.k8s.io/v1/namespaces/a/networkpolicies/x");
  EXPECT_EQ(object_path(kPersistentVolumeClaims, {"a", "x"}), "/api/v1/namespaces/a/persistentvolumeclaims/x");
  EXPECT_EQ(object_path(kServices, {"a", "x"}), "/api/v1/namespaces/a/services/x");
  EXPECT_EQ(object_path(kEvents, {"a", "x"}), "/api/v1/namespaces/a/events/x");
  EXPECT_EQ(group_path(kTrainJobs), "/apis/lockstep.dev/v1");
  EXPECT_EQ(group_path(kPods), "/api/v1");
}

TEST(Resource, objects_of_the_whole_cluster_have_no_namespace_in_their_path) {
  EXPECT_EQ(object_path(kNodes, {"", "node-1"}), "/api/v1/nodes/node-1");
  EXPECT_EQ(object_path(kNodes, {"by-mistake", "node-1"}), "/api/v1/nodes/node-1");
}

TEST(Resource, api_versions_leave_out_the_core_group) {
  EXPECT_EQ(kPods.api_version(), "v1");
  EXPECT_EQ(kTrainJobs.api_version(), "lockstep.dev/v1");
}

TEST(Resource, names_cannot_leave_their_place_in_a_path) {
  EXPECT_EQ(object_path(kPods, {"a/../b", "x?y=z#w"}), "/api/v1/namespaces/a%2F..%2Fb/pods/x%3Fy%3Dz%23w");
  EXPECT_EQ(object_path(kEvents, {"a", "x.17f0a1\n"}), "/api/v1/namespaces/a/events/x.17f0a1%0A");
}

TEST(Query, values_are_encoded) {
  EXPECT_EQ(percent_encoded("aZ09-._~"), "aZ09-._~");
  EXPECT_EQ(percent_encoded("a=b,c in (d),!e"), "a%3Db%2Cc%20in%20%28d%29%2C%21e");
  EXPECT_EQ(percent_encoded("\xc3\xa9%\xff"), "%C3%A9%25%FF");
}

TEST(Query, empty_values_can_be_left_out) {
  Query query;
  query.add("watch", "1").add_if("labelSelector", "").add_if("fieldSelector", "metadata.name=x").add("continue", "");
  EXPECT_EQ(query.text(), "watch=1&fieldSelector=metadata.name%3Dx&continue=");
}

}  // namespace
}  // namespace lockstep::kube
