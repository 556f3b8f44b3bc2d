#include "operator/kube/object_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <pthread.h>

#include <functional>

namespace lockstep::kube {
namespace {

using ::testing::HasSubstr;

std::string repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all.append(i == 0 ? "" : ",").append(text);
  return all;
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

// A TrainJob with this podTemplate.
std::string job_text(const std::string& pod_template) {
  return R"({"apiVersion":"lockstep.dev/v1","kind":"TrainJob","metadata":{"name":"x","uid":"u"},)"
         R"("spec":{"managedBy":"me","trainer":{"image":"i","podTemplate":)" +
         pod_template + R"(}},"status":{"phase":"Running"}})";
}

size_t values_of(const Json& json) {
  size_t values = 1;
  if (json.is_structured()) {
    for (const Json& child : json) values += values_of(child);
  }
  return values;
}

TEST(ObjectText, is_the_document_that_a_parser_makes) {
  for (const std::string& text :
       {std::string("{}"), job_text("{}"), job_text(R"({"spec":{"containers":[{"name":"trainer","args":["\"{["]}]}})"),
        std::string(R"( {"a": 1, "b": null, "c": [1, 2], "\u0064": "x"} )")}) {
    const Result<Json> object = read_object(text);
    ASSERT_TRUE(object.ok()) << object.error().message;
    EXPECT_EQ(*object, Json::parse(text));
  }
}

TEST(ObjectText, that_is_no_object_is_corrupt) {
  for (const char* text : {"", "7", "[]", "[{}]", "{", R"({"a":})", R"({"a":1}x)", R"({"a":{]}})", R"({"\x":1})"}) {
    const Result<Json> object = read_object(text);
    ASSERT_FALSE(object.ok()) << text;
    EXPECT_EQ(object.error().code, ErrorCode::kCorrupt);
  }
}

TEST(ObjectText, leaves_out_of_a_part_that_is_too_large_all_but_its_small_members) {
  const std::string blank(size_t{300} << 10, ' ');
  const Result<Json> object = read_object(job_text("{\"a\":\"" + blank + "\"}"), size_t{256} << 10);
  ASSERT_TRUE(object.ok()) << object.error().message;
  EXPECT_EQ(object->at("metadata").at("uid"), "u");
  EXPECT_EQ(object->at("status").at("phase"), "Running");
  EXPECT_EQ(object->at("spec").at("managedBy"), "me");
  EXPECT_EQ(object->at("spec").at("trainer"), "spec has 307265 bytes of JSON; the operator reads at most 262144");
  EXPECT_EQ(read_object(job_text("{\"a\":\"" + blank + "\"}"))->at("spec").at("trainer").at("image"), "i");
}

// 1.4 MB of these would be 40 MB as a document.
TEST(ObjectText, leaves_out_of_a_part_what_has_too_many_values) {
  const Result<Json> object = read_object(job_text("[" + repeated("{}", 460'000) + "]"), size_t{2} << 20);
  ASSERT_TRUE(object.ok()) << object.error().message;
  EXPECT_LT(values_of(*object), 20U);
  EXPECT_THAT(object->at("spec").at("trainer").get<std::string>(), HasSubstr("values of JSON; the operator reads"));
  // Nor do many members, or many parts, that are each small enough make a large one.
  std::string members;
  for (int i = 0; i < 50'000; ++i) {
    members.append(i == 0 ? "" : ",").append("\"").append(std::to_string(i)).append("\":[{},{},{},{},{},{},{},{}]");
  }
  const Result<Json> one_field = read_object("{\"spec\":{" + members + "}}");
  ASSERT_TRUE(one_field.ok());
  EXPECT_LT(values_of(*one_field), 60'000U);
  const Result<Json> many_fields = read_object("{" + members + "}");
  ASSERT_TRUE(many_fields.ok());
  EXPECT_LT(values_of(*many_fields), 80'000U);
}

// As documents are copied and written, by recursion. The smallest stack of a thread of the operator has 2 MB.
TEST(ObjectText, of_nearly_ten_thousand_levels_is_read_copied_and_written_on_a_small_stack) {
  std::function<void()> work = [] {
    for (const std::string& pod_template :
         {nested(9'900), R"({"spec":)" + nested(9'900) + "}", nested(120), nested(kJsonDepthMax)}) {
      const Result<Json> object = read_object(job_text(pod_template));
      ASSERT_TRUE(object.ok()) << object.error().message;
      const Json copy = *object;  // NOLINT(performance-unnecessary-copy-initialization): its recursion is the matter
      EXPECT_EQ(copy, *object);
      EXPECT_LT(dump_line(copy).size(), 1000U);
      EXPECT_EQ(copy.at("metadata").at("name"), "x");
    }
    const Result<Json> deep = read_object(job_text(nested(9'900)));
    EXPECT_EQ(deep->at("spec").at("trainer"), "spec has 9902 levels of nesting; the operator reads at most 126");
    EXPECT_TRUE(read_object(job_text(nested(120)))->at("spec").at("trainer").is_object());
    EXPECT_TRUE(read_object("{\"a\":" + nested(9'900) + "}")->at("a").is_string());
  };
  pthread_attr_t small;
  pthread_attr_init(&small);
  ASSERT_EQ(pthread_attr_setstacksize(&small, size_t{512} << 10), 0);
  pthread_t thread{};
  const auto run = [](void* given) -> void* {
    (*static_cast<std::function<void()>*>(given))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &small, run, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&small);
}

// What the operator finds an object by stays, though labels alone fill the object.
TEST(ObjectText, keeps_the_name_and_the_uid_beside_very_many_labels) {
  std::string labels;
  for (int i = 0; i < 200'000; ++i) labels.append("\"").append(std::to_string(i)).append("\":\"\",");
  const Result<Json> object = read_object(R"({"metadata":{"annotations":{"a":")" + std::string(64 << 10, 'a') +
                                          R"("},"labels":{)" + labels + R"("a":""},"name":"x","uid":"u"}})");
  ASSERT_TRUE(object.ok()) << object.error().message;
  EXPECT_EQ(object->at("metadata").at("name"), "x");
  EXPECT_EQ(object->at("metadata").at("uid"), "u");
  EXPECT_TRUE(object->at("metadata").at("labels").is_string());
}

TEST(ObjectText, keeps_the_status_of_ten_thousand_pods_that_were_lost) {
  const std::string attempts = repeated(R"({"attempt":2,"node":9999,"lastNode":9999})", 10'000);
  const Result<Json> object = read_object(R"({"status":{"attempts":[)" + attempts + "]}}", size_t{256} << 10);
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(object->at("status").at("attempts").size(), 10'000U);
}

TEST(ListText, gives_its_items_one_by_one) {
  std::vector<Json> items;
  const auto take = [&](Json item) { items.push_back(std::move(item)); };
  const Result<ListHead> head =
      read_list(R"({"kind":"List","metadata":{"resourceVersion":"7","continue":"c"},"items":[{"a":1},{"spec":)" +
                    nested(200) + "}]}",
                take);
  ASSERT_TRUE(head.ok()) << head.error().message;
  EXPECT_EQ(head->resource_version, "7");
  EXPECT_EQ(head->continuation, "c");
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0], Json({{"a", 1}}));
  EXPECT_EQ(items[1].at("spec"), "spec has 200 levels of nesting; the operator reads at most 126");
}

}  // namespace
}  // namespace lockstep::kube
