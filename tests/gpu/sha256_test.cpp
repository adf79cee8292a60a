#include "gpu/sha256.h"

#include <gtest/gtest.h>

namespace warploom::gpu {
namespace {

// NIST, Secure Hashing example values and SHAVS: the short, the two-block and the long message.
TEST(Sha256, AgreesWithNistVectors) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      to_hex(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                    "mnopqrstnopqrstu")),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(to_hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheMessageIsCut) {
  std::string message;
  for (int i = 0; i < 300; ++i) message.push_back(static_cast<char>(i * 7));
  for (std::size_t length : {1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 300}) {
    const std::string_view whole = std::string_view(message).substr(0, length);
    for (std::size_t cut = 0; cut <= length; ++cut) {
      Sha256 hash;
      hash.add(whole.substr(0, cut));
      hash.add(whole.substr(cut));
      ASSERT_EQ(hash.finish(), sha256(whole)) << length << " bytes cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace warploom::gpu
