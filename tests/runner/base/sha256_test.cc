#include "runner/base/sha256.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// FIPS 180-4's own examples.
TEST(Sha256, gives_the_digests_of_the_standard) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 sum;
  sum.update("a", 1);
  sum.update("bc", 2);
  EXPECT_EQ(sum.hex_digest(), sha256_hex("abc"));
}

struct HmacCase {
  std::string key;
  std::string data;
  std::string digest;
};

// RFC 4231, section 4: cases 1, 2, 3, 4, 6 and 7 (5 is about truncation).
TEST(HmacSha256, gives_the_digests_of_rfc_4231) {
  std::string counting;
  for (char byte = 1; byte <= 25; ++byte) counting.push_back(byte);
  const HmacCase cases[] = {
      {std::string(20, '\x0b'), "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting, std::string(50, '\xcd'), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
       "hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const HmacCase& c : cases) EXPECT_EQ(hmac_sha256_hex(c.key, c.data), c.digest) << c.data;
}

TEST(HmacSha256, takes_an_empty_key_and_no_data) {
  EXPECT_EQ(hmac_sha256_hex("", ""), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

}  // namespace
}  // namespace lockstep
