// The emulator itself: what instructions compute, and that each kind of mistake is found.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "grid.h"
#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "tensor_map.h"

namespace warploom::emulator {
namespace {

/// Device memory that ends with the object.
template <typename T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : values_(count) { global_memory().add(values_.data(), count * sizeof(T)); }
  ~Buffer() { global_memory().remove(values_.data()); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T& operator[](std::size_t i) { return values_[i]; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(values_.data()); }

 private:
  std::vector<T> values_;
};

struct Setting {
  std::uint32_t threads = 32;
  std::uint32_t shared_bytes = 0;
  std::uint64_t seed = 0;
  std::uint32_t ctas = 1;
  std::uint32_t cluster = 1;
};

/// Runs `body` as a kernel whose parameter is one address, %rd0.
void run(const std::string& body, std::uint64_t argument, const Setting& setting = {}) {
  const std::string text =
      ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 shared[];\n"
      ".visible .entry kernel(\n.param .u64 kernel_param_0\n)\n{\n"
      ".reg .pred %p<9>;\n.reg .b32 %r<99>;\n.reg .b64 %rd<99>;\n.reg .f32 %f<99>;\n"
      "ld.param.u64 %rd0, [kernel_param_0];\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, shared;\n" +
      body + "\nret;\n}\n";
  const std::unique_ptr<Module> module = parse_module(text);
  Launch launch;
  launch.kernel = module->kernels.at("kernel").get();
  launch.grid = {setting.ctas, 1, 1};
  launch.block = {setting.threads, 1, 1};
  launch.cluster = setting.cluster;
  launch.shared_bytes = setting.shared_bytes;
  launch.order.seed = setting.seed;
  launch.parameters.resize(8);
  std::memcpy(launch.parameters.data(), &argument, 8);
  run_grid(launch);
}

std::string mistake(const std::string& body, std::uint64_t argument, const Setting& setting = {}) {
  try {
    run(body, argument, setting);
  } catch (const EmulationError& error) {
    return error.what();
  }
  return "";
}

/// %rd2 = argument + 4 * thread.
const std::string own_word = "mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd2, %rd0, %rd1;\n";

TEST(Emulator, BranchesLoopsAndPredicatesGoEachThreadsWay) {
  Buffer<std::uint32_t> out(64);
  // The sum of 0 .. thread, and for odd threads its negation.
  run(own_word +
          "mov.u32 %r2, 0;\nmov.u32 %r3, 0;\n$again:\nadd.s32 %r2, %r2, %r3;\nadd.s32 %r3, %r3, 1;\n"
          "setp.le.s32 %p0, %r3, %r0;\n@%p0 bra $again;\nand.b32 %r4, %r0, 1;\nsetp.eq.s32 %p1, %r4, 0;\n"
          "@!%p1 neg.s32 %r2, %r2;\nst.global.u32 [%rd2], %r2;",
      out.address(), {.threads = 64});
  for (std::uint32_t i = 0; i < 64; ++i) {
    const std::uint32_t sum = i * (i + 1) / 2;
    EXPECT_EQ(out[i], i % 2 == 0 ? sum : 0u - sum) << i;
  }
}

TEST(Emulator, IntegersWrapShiftsClampAndBitsAreFound) {
  Buffer<std::uint32_t> out(32);
  run("mov.u32 %r2, 0x80000001;\nshl.b32 %r3, %r2, 32;\nst.global.u32 [%rd0], %r3;\n"
      "shr.s32 %r3, %r2, 40;\nst.global.u32 [%rd0+4], %r3;\n"
      "mul.hi.s32 %r3, %r2, %r2;\nst.global.u32 [%rd0+8], %r3;\n"
      "bfind.shiftamt.u32 %r3, 0x00010000;\nst.global.u32 [%rd0+12], %r3;\n"
      "prmt.b32 %r3, 0x33221100, 0x77665544, 0x7502;\nst.global.u32 [%rd0+16], %r3;\n"
      "bfi.b32 %r3, 0xAB, 0xFFFFFFFF, 8, 8;\nst.global.u32 [%rd0+20], %r3;\n"
      "rem.s32 %r3, -7, 4;\nst.global.u32 [%rd0+24], %r3;\n"
      "min.u32 %r3, -1, 5;\nst.global.u32 [%rd0+28], %r3;\n"
      "cvt.rn.bf16x2.f32 %r3, 0f3F800000, 0f40490FDB;\nst.global.u32 [%rd0+32], %r3;\n"
      "cvt.rz.f32.u32 %f0, 0xFFFFFFFF;\nst.global.f32 [%rd0+36], %f0;\n"
      "mov.u64 %rd2, 0x1000001FFFFFFFFF;\ncvt.rz.f32.u64 %f0, %rd2;\nst.global.f32 [%rd0+40], %f0;",
      out.address(), {.threads = 1});
  const std::vector<std::uint32_t> expected = {0,          0xFFFFFFFF, 0x3FFFFFFF, 15,         0x77550022, 0xFFFFABFF,
                                               0xFFFFFFFD, 5,          0x3F804049, 0x4F7FFFFF, 0x5D800000};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(out[i], expected[i]) << i;
}

TEST(Emulator, EachThreadHasLocalMemory) {
  Buffer<std::uint32_t> out(64);
  run(".local .align 8 .b8 depot[40];\n" + own_word +
          "mov.u64 %rd3, depot;\nst.local.u32 [%rd3+36], %r0;\nbar.sync 0;\ncvta.local.u64 %rd4, %rd3;\n"
          "ld.u32 %r2, [%rd4+36];\nst.global.u32 [%rd2], %r2;",
      out.address(), {.threads = 64});
  for (std::uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i);
}

TEST(Emulator, LanesExchangeValuesAndVote) {
  Buffer<std::uint32_t> out(32);
  run(own_word +
          "shfl.sync.bfly.b32 %r2|%p0, %r0, 5, 31, -1;\nsetp.lt.u32 %p1, %r0, 7;\nvote.sync.ballot.b32 %r3, %p1, -1;\n"
          "redux.sync.max.u32 %r4, %r0, -1;\nshl.b32 %r3, %r3, 8;\nadd.s32 %r2, %r2, %r3;\nshl.b32 %r4, %r4, 24;\n"
          "add.s32 %r2, %r2, %r4;\nst.global.u32 [%rd2], %r2;",
      out.address());
  for (std::uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(out[lane], (31u << 24) + (0x7Fu << 8) + (lane ^ 5u));
}

TEST(Emulator, SixteenBitFloatsRoundToNearestEven) {
  EXPECT_EQ(to_bf16(1.00390625f), 0x3F80);  // half way: to the even neighbour
  EXPECT_EQ(to_bf16(1.01171875f), 0x3F82);
  EXPECT_EQ(to_bf16(INFINITY), 0x7F80);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(NAN))));
  EXPECT_EQ(to_f16(65520.0f), 0x7C00);  // past the largest number
  EXPECT_EQ(from_e4m3(0x7E), 448.0f);
  EXPECT_EQ(from_e4m3(0x01), 0.001953125f);
  EXPECT_TRUE(std::isnan(from_e4m3(0xFF)));
  EXPECT_EQ(from_e5m2(0x7B), 57344.0f);
}

TEST(Emulator, ThreadsMeetAtNamedBarriers) {
  Buffer<std::uint32_t> out(64);
  // Each thread leaves its number in shared memory and reads the mirrored one.
  run(own_word +
          "shl.b32 %r2, %r0, 2;\nadd.s32 %r2, %r1, %r2;\nst.shared.u32 [%r2], %r0;\nbar.sync 3, 64;\n"
          "sub.s32 %r3, 63, %r0;\nshl.b32 %r3, %r3, 2;\nadd.s32 %r3, %r1, %r3;\nld.shared.u32 %r4, [%r3];\n"
          "st.global.u32 [%rd2], %r4;",
      out.address(), {.threads = 64, .shared_bytes = 256, .seed = 7});
  for (std::uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], 63 - i);
}

// Only the first warp of each CTA meets the other's; the second has exited by then.
TEST(Emulator, AClusterDoesNotWaitForThreadsThatExited) {
  for (const std::uint64_t seed : {0u, 1u, 2u}) {
    Buffer<std::uint32_t> out(2);
    run("setp.ge.u32 %p0, %r0, 32;\n@%p0 exit;\nmov.u32 %r2, %cluster_ctarank;\nadd.s32 %r3, %r2, 7;\n"
        "st.shared.u32 [%r1], %r3;\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        "xor.b32 %r4, %r2, 1;\nmapa.shared::cluster.u32 %r5, %r1, %r4;\nld.shared::cluster.u32 %r6, [%r5];\n"
        "mul.wide.u32 %rd1, %r2, 4;\nadd.s64 %rd2, %rd0, %rd1;\nst.global.u32 [%rd2], %r6;\n"
        "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;",
        out.address(), {.threads = 64, .shared_bytes = 256, .seed = seed, .ctas = 2, .cluster = 2});
    EXPECT_EQ(out[0], 8u);
    EXPECT_EQ(out[1], 7u);
  }
}

// mbarrier at the front of shared memory, data from 1024 on.
const std::string one_arrival =
    "setp.ne.s32 %p0, %r0, 0;\n@%p0 bra $ready;\nmbarrier.init.shared::cta.b64 [%r1], 1;\n$ready:\nbar.sync 0;\n";
const std::string wait_for_it = "$wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;\n@!%p2 bra $wait;\n";
const std::string load_bulk =
    "@%p0 bra $issued;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;\nadd.s32 %r5, %r1, 1024;\n"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r5], [%rd0], 128, [%r1], 0;\n"
    "$issued:\n";
const std::string copy_back =
    "shl.b32 %r2, %r0, 2;\nadd.s32 %r2, %r1, %r2;\nld.shared.u32 %r3, [%r2+1024];\nst.global.u32 [%rd2+128], %r3;\n";

TEST(Emulator, BulkCopiesCompleteOnTheirMbarrier) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    Buffer<std::uint32_t> memory(64);
    for (std::uint32_t i = 0; i < 32; ++i) memory[i] = 100 + i;
    run(own_word + one_arrival + load_bulk + wait_for_it + copy_back, memory.address(),
        {.shared_bytes = 2048, .seed = seed});
    for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(memory[32 + i], 100 + i) << seed;
  }
}

TEST(Emulator, AForgottenWaitShowsWhenCopiesComeLate) {
  Buffer<std::uint32_t> memory(64);
  for (std::uint32_t i = 0; i < 32; ++i) memory[i] = 100 + i;
  int wrong = 0;
  for (std::uint64_t seed = 1; seed < 5; ++seed) {
    run(own_word + one_arrival + load_bulk + copy_back, memory.address(), {.shared_bytes = 2048, .seed = seed});
    if (memory[32] != 100) ++wrong;
  }
  EXPECT_GT(wrong, 0);
}

// Two warps have a slot that a third one fills twice; thread 0 lets it go for both.
std::string let_go(const std::string& before) {
  return "setp.ne.s32 %p0, %r0, 0;\n@%p0 bra $ready;\nmbarrier.init.shared::cta.b64 [%r1], 1;\n"
         "mbarrier.init.shared::cta.b64 [%r1+8], 1;\n$ready:\nbar.sync 0;\n"
         "setp.ge.u32 %p1, %r0, 64;\n@%p1 bra $fill;\n"
         "$wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;\n@!%p2 bra $wait;\n" +
         before +
         "@%p0 bra $end;\nmbarrier.arrive.shared::cta.b64 _, [%r1+8];\nbra $end;\n"
         "$fill:\nsetp.ne.s32 %p3, %r0, 64;\n@%p3 bra $end;\nmbarrier.arrive.shared::cta.b64 _, [%r1];\n"
         "$empty:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], 0;\n@!%p2 bra $empty;\n"
         "mbarrier.arrive.shared::cta.b64 _, [%r1];\n$end:";
}

// The warp that has not seen the first filling finds a phase of the same parity, which nobody ends.
TEST(Emulator, ASlowWarpMissesAPhaseThatOthersLetGo) {
  Buffer<std::uint32_t> memory(1);
  int found = 0;
  for (std::uint64_t seed = 1; seed < 9; ++seed) {
    const Setting setting = {.threads = 96, .shared_bytes = 1024, .seed = seed};
    if (mistake(let_go(""), memory.address(), setting).find("deadlock") != std::string::npos) ++found;
    EXPECT_EQ(mistake(let_go("bar.sync 1, 64;\n"), memory.address(), setting), "") << seed;
  }
  EXPECT_GT(found, 0);
}

TEST(Emulator, ADeadlockNamesWhoWaitsForWhat) {
  Buffer<std::uint32_t> memory(64);
  const std::string text = mistake(own_word + one_arrival + wait_for_it, memory.address(), {.shared_bytes = 2048});
  EXPECT_NE(text.find("deadlock"), std::string::npos) << text;
  EXPECT_NE(text.find("mbarrier at shared address 0 to end its phase of parity 0"), std::string::npos) << text;
  EXPECT_NE(text.find("1 of 1 arrivals"), std::string::npos) << text;
  const std::string barrier =
      mistake("setp.lt.u32 %p0, %r0, 32;\n@%p0 bar.sync 1, 64;", memory.address(), {.threads = 64});
  EXPECT_NE(barrier.find("named barrier 1, where 32 threads have come"), std::string::npos) << barrier;
}

TEST(Emulator, AccessesOutsideOfMemoryAreRefused) {
  Buffer<std::uint32_t> memory(4);
  EXPECT_NE(mistake("st.global.u32 [%rd0+16], %r0;", memory.address()).find("lies in no allocation"),
            std::string::npos);
  EXPECT_NE(mistake("ld.global.u32 %r2, [%rd0+2];", memory.address()).find("no multiple of 4"), std::string::npos);
  EXPECT_NE(mistake("st.shared.u32 [%r1+256], %r0;", 0, {.shared_bytes = 256}).find("outside of the CTA's"),
            std::string::npos);
  EXPECT_NE(
      mistake("mbarrier.arrive.shared::cta.b64 _, [%r1];", 0, {.shared_bytes = 256}).find("no initialised mbarrier"),
      std::string::npos);
}

TEST(Emulator, SharedMemoryThatNobodyWroteIsNan) {
  Buffer<float> memory(32);
  run(own_word + "ld.shared.f32 %f0, [%r1+64];\nst.global.f32 [%rd2], %f0;", memory.address(), {.shared_bytes = 128});
  EXPECT_TRUE(std::isnan(memory[0]));
}

TEST(Emulator, OrdinaryStoresNeedAFenceBeforeTheAsynchronousProxyReads) {
  Buffer<std::uint32_t> memory(64);
  const std::string store = "shl.b32 %r2, %r0, 2;\nadd.s32 %r2, %r1, %r2;\nst.shared.u32 [%r2], %r0;\n";
  const std::string send =
      "bar.sync 0;\nsetp.ne.s32 %p0, %r0, 0;\n@%p0 bra $sent;\n"
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd0], [%r1], 128, 0;\n"
      "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n$sent:\n";
  const Setting setting{.shared_bytes = 256};
  EXPECT_NE(mistake(store + send, memory.address(), setting).find("without a fence.proxy.async"), std::string::npos);
  run(store + "fence.proxy.async.shared::cta;\n" + send, memory.address(), setting);
  for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(memory[i], i);
}

// A and B of ones, 64 x 16 and 8 x 16, written by ordinary stores; C = A B^T is 16 everywhere.
const std::string ones =
    "mov.u32 %r2, 0;\n$fill:\nshl.b32 %r3, %r0, 2;\nadd.s32 %r3, %r3, %r2;\nadd.s32 %r3, %r1, %r3;\n"
    "st.shared.u32 [%r3], 0x3F803F80;\nadd.s32 %r2, %r2, 512;\nsetp.lt.u32 %p0, %r2, 9216;\n@%p0 bra $fill;\n"
    "fence.proxy.async.shared::cta;\nbar.sync 0;\n";
const std::string product =
    "shr.u32 %r4, %r1, 4;\nadd.s32 %r5, %r4, 512;\nmov.b64 %rd3, {%r4, 0x40000040};\nmov.b64 %rd4, {%r5, 0x40000040};\n"
    "setp.ne.b32 %p3, 0, 0;\nwgmma.fence.sync.aligned;\n"
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd3, %rd4, %p3, 1, 1, 0, 0;\n"
    "wgmma.commit_group.sync.aligned;\n";
const std::string keep = own_word + "wgmma.wait_group.sync.aligned 0;\nst.global.f32 [%rd2], %f3;\n";

TEST(Emulator, AWarpgroupMultiplies) {
  Buffer<float> memory(128);
  run(ones + product + keep, memory.address(), {.threads = 128, .shared_bytes = 9216});
  for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(memory[i], 16.0f);
}

TEST(Emulator, SharedMemoryIsNotOverwrittenUnderAWgmma) {
  Buffer<float> memory(128);
  const std::string text = mistake(ones + product + "st.shared.u32 [%r1], 0;\n" + keep, memory.address(),
                                   {.threads = 128, .shared_bytes = 9216});
  EXPECT_NE(text.find("while a wgmma in flight may still read it"), std::string::npos) << text;
}

TEST(Emulator, TheSameMayBeStoredAgainUnderAWgmma) {
  Buffer<float> memory(128);
  run(ones + product + "st.shared.u32 [%r1], 0x3F803F80;\n" + keep, memory.address(),
      {.threads = 128, .shared_bytes = 9216});
  EXPECT_EQ(memory[0], 16.0f);
}

TEST(Emulator, MatrixFragmentsMultiply) {
  // Rows of A are loaded by ldmatrix from shared memory that holds random small integers; B is the same memory.
  Buffer<float> memory(4 * 32);
  std::mt19937 random(5);
  Buffer<std::uint16_t> values(256);
  std::vector<float> a(256);
  for (std::size_t i = 0; i < 256; ++i) {
    a[i] = static_cast<float>(random() % 9) - 4;
    values[i] = to_bf16(a[i]);
  }
  Buffer<std::uint64_t> arguments(2);
  arguments[0] = values.address();
  arguments[1] = memory.address();
  run("ld.global.u64 %rd1, [%rd0];\nld.global.u64 %rd2, [%rd0+8];\nmul.wide.u32 %rd3, %r0, 16;\nadd.s64 %rd4, %rd1, "
      "%rd3;\n"
      "shl.b32 %r2, %r0, 4;\nadd.s32 %r3, %r1, %r2;\ncp.async.cg.shared.global [%r3], [%rd4], "
      "16;\ncp.async.commit_group;\n"
      "cp.async.wait_group 0;\nbar.sync 0;\n"
      // Lane 8 i + r addresses row r + 8 (i % 2), columns 8 (i / 2): the order of A's registers.
      "and.b32 %r4, %r0, 15;\nshr.u32 %r5, %r0, 4;\nshl.b32 %r4, %r4, 5;\nshl.b32 %r5, %r5, 4;\nadd.s32 %r6, %r4, "
      "%r5;\n"
      "add.s32 %r6, %r6, %r1;\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r6];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, {%r10, "
      "%r12}, "
      "{0f3F800000, 0f00000000, 0f00000000, 0f00000000};\n"
      "mul.wide.u32 %rd5, %r0, 16;\nadd.s64 %rd6, %rd2, %rd5;\nst.global.v4.f32 [%rd6], {%f0, %f1, %f2, %f3};",
      arguments.address(), {.shared_bytes = 512, .seed = 3});
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + 8 * (i / 2);
      const std::size_t column = 2 * (lane % 4) + i % 2;
      float expected = i == 0 ? 1.0f : 0.0f;
      for (std::size_t k = 0; k < 16; ++k) expected += a[row * 16 + k] * a[column * 16 + k];
      EXPECT_EQ(memory[4 * lane + i], expected) << lane << " " << i;
    }
  }
}

TEST(Emulator, WhatIsNotUnderstoodIsNamedWithItsLine) {
  const std::string text = mistake("tcgen05.alloc.b32 %r2, %r3;", 0);
  EXPECT_NE(text.find("unknown instruction tcgen05.alloc.b32"), std::string::npos) << text;
  EXPECT_NE(text.find("PTX line 16"), std::string::npos) << text;
}

}  // namespace
}  // namespace warploom::emulator
