// What the ladders' commands read: machine code, ncu's counts, the tables of rungs.
#include "cli/ladder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "cli/bank_conflicts.h"
#include "cli/disassembly.h"

namespace warploom::cli {
namespace {

TEST(InnerLoop, IsTheInnermostOneWithMatrixInstructions) {
  const std::optional<InnerLoop> loop = inner_loop(R"(
.text.attention:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;
.L_x_1:
        /*0020*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0030*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
        /*0050*/                   HMMA.16816.F32.BF16 R12, R4, R6, R12 ;
.L_x_2:
        /*0060*/               @P0 BRA `(.L_x_1) ;
        /*0070*/               @P2 BRA `(.L_x_0) ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_3);
)");
  ASSERT_TRUE(loop.has_value());
  EXPECT_EQ(loop->instructions, 5);
  EXPECT_EQ(loop->mma, 2);
  EXPECT_DOUBLE_EQ(loop->others_per_mma(), 1.5);
}

TEST(InnerLoop, IsMissingWithoutAMatrixInstructionInALoop) {
  EXPECT_FALSE(inner_loop("").has_value());
  EXPECT_FALSE(inner_loop("        /*0030*/ HMMA.16816.F32.BF16 R8, R4, R6, R8 ;\n").has_value());
  EXPECT_FALSE(inner_loop(".L_x_0:\n        /*0030*/ FFMA R8, R4, R6, R8 ;\n        /*0040*/ BRA `(.L_x_0) ;\n"));
}

TEST(BankConflicts, AreReadLaunchAfterLaunch) {
  const std::string header = R"("ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value")";
  const std::string text = "==PROF== Connected\n" + header +
                           R"(
"0","7","attention","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","","1,500"
"0","7","attention","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum","","2,000"
"1","7","attention","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","","0"
"1","7","attention","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum","","500"
"2","7","attention","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","","n/a"
)";
  EXPECT_EQ(conflict_shares(text), (std::vector<double>{0.75, 0, -1}));
  EXPECT_TRUE(conflict_shares("==ERROR== ERR_NVGPUCTRPERM\n").empty());
}

TEST(Ladder, HasAFileOfFewLinesForEveryRungButTheProducts) {
  for (const char* folder : {"ladder", "gemm_ladder"}) {
    const Result<std::vector<Rung>> rungs = read_ladder(folder);
    ASSERT_TRUE(rungs.ok()) << rungs.status().message();
    EXPECT_FALSE(rungs->back().row.contains("file"));
    for (const Rung& rung : *rungs) {
      if (!rung.row.contains("file")) continue;
      const std::string path =
          std::string(WARPLOOM_EXAMPLES) + "/" + folder + "/" + rung.row["file"].get<std::string>();
      std::ifstream file(path);
      ASSERT_TRUE(file) << path;
      int lines = 0;
      for (std::string line; std::getline(file, line);) ++lines;
      EXPECT_LT(lines, 250) << path;
    }
  }
  EXPECT_EQ((*choose_rungs(*read_ladder("ladder"), {"ring"}))[0].name, "ring");
  EXPECT_FALSE(choose_rungs(*read_ladder("ladder"), {"stairs"}).ok());
}

}  // namespace
}  // namespace warploom::cli
