// Lists of accumulator registers for inline assembly with 4, 8, ..., 128 of them: WARPLOOM_REGISTERS_n is the text
// "%0, ..., %n-1", WARPLOOM_ACCUMULATORS_n(d) the operands "+f"(d[0]), ..., "+f"(d[n - 1]). An instruction's text
// cannot be put together by templates, so wgmma needs them as macros.
#pragma once

// clang-format off
#define WARPLOOM_REGISTERS_4 "%0, %1, %2, %3"
#define WARPLOOM_REGISTERS_8 WARPLOOM_REGISTERS_4 ", %4, %5, %6, %7"
#define WARPLOOM_REGISTERS_12 WARPLOOM_REGISTERS_8 ", %8, %9, %10, %11"
#define WARPLOOM_REGISTERS_16 WARPLOOM_REGISTERS_12 ", %12, %13, %14, %15"
#define WARPLOOM_REGISTERS_20 WARPLOOM_REGISTERS_16 ", %16, %17, %18, %19"
#define WARPLOOM_REGISTERS_24 WARPLOOM_REGISTERS_20 ", %20, %21, %22, %23"
#define WARPLOOM_REGISTERS_28 WARPLOOM_REGISTERS_24 ", %24, %25, %26, %27"
#define WARPLOOM_REGISTERS_32 WARPLOOM_REGISTERS_28 ", %28, %29, %30, %31"
#define WARPLOOM_REGISTERS_36 WARPLOOM_REGISTERS_32 ", %32, %33, %34, %35"
#define WARPLOOM_REGISTERS_40 WARPLOOM_REGISTERS_36 ", %36, %37, %38, %39"
#define WARPLOOM_REGISTERS_44 WARPLOOM_REGISTERS_40 ", %40, %41, %42, %43"
#define WARPLOOM_REGISTERS_48 WARPLOOM_REGISTERS_44 ", %44, %45, %46, %47"
#define WARPLOOM_REGISTERS_52 WARPLOOM_REGISTERS_48 ", %48, %49, %50, %51"
#define WARPLOOM_REGISTERS_56 WARPLOOM_REGISTERS_52 ", %52, %53, %54, %55"
#define WARPLOOM_REGISTERS_60 WARPLOOM_REGISTERS_56 ", %56, %57, %58, %59"
#define WARPLOOM_REGISTERS_64 WARPLOOM_REGISTERS_60 ", %60, %61, %62, %63"
#define WARPLOOM_REGISTERS_68 WARPLOOM_REGISTERS_64 ", %64, %65, %66, %67"
#define WARPLOOM_REGISTERS_72 WARPLOOM_REGISTERS_68 ", %68, %69, %70, %71"
#define WARPLOOM_REGISTERS_76 WARPLOOM_REGISTERS_72 ", %72, %73, %74, %75"
#define WARPLOOM_REGISTERS_80 WARPLOOM_REGISTERS_76 ", %76, %77, %78, %79"
#define WARPLOOM_REGISTERS_84 WARPLOOM_REGISTERS_80 ", %80, %81, %82, %83"
#define WARPLOOM_REGISTERS_88 WARPLOOM_REGISTERS_84 ", %84, %85, %86, %87"
#define WARPLOOM_REGISTERS_92 WARPLOOM_REGISTERS_88 ", %88, %89, %90, %91"
#define WARPLOOM_REGISTERS_96 WARPLOOM_REGISTERS_92 ", %92, %93, %94, %95"
#define WARPLOOM_REGISTERS_100 WARPLOOM_REGISTERS_96 ", %96, %97, %98, %99"
#define WARPLOOM_REGISTERS_104 WARPLOOM_REGISTERS_100 ", %100, %101, %102, %103"
#define WARPLOOM_REGISTERS_108 WARPLOOM_REGISTERS_104 ", %104, %105, %106, %107"
#define WARPLOOM_REGISTERS_112 WARPLOOM_REGISTERS_108 ", %108, %109, %110, %111"
#define WARPLOOM_REGISTERS_116 WARPLOOM_REGISTERS_112 ", %112, %113, %114, %115"
#define WARPLOOM_REGISTERS_120 WARPLOOM_REGISTERS_116 ", %116, %117, %118, %119"
#define WARPLOOM_REGISTERS_124 WARPLOOM_REGISTERS_120 ", %120, %121, %122, %123"
#define WARPLOOM_REGISTERS_128 WARPLOOM_REGISTERS_124 ", %124, %125, %126, %127"

#define WARPLOOM_ACCUMULATORS_4(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WARPLOOM_ACCUMULATORS_8(d) WARPLOOM_ACCUMULATORS_4(d), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WARPLOOM_ACCUMULATORS_12(d) WARPLOOM_ACCUMULATORS_8(d), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define WARPLOOM_ACCUMULATORS_16(d) WARPLOOM_ACCUMULATORS_12(d), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WARPLOOM_ACCUMULATORS_20(d) WARPLOOM_ACCUMULATORS_16(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define WARPLOOM_ACCUMULATORS_24(d) WARPLOOM_ACCUMULATORS_20(d), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WARPLOOM_ACCUMULATORS_28(d) WARPLOOM_ACCUMULATORS_24(d), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define WARPLOOM_ACCUMULATORS_32(d) WARPLOOM_ACCUMULATORS_28(d), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WARPLOOM_ACCUMULATORS_36(d) WARPLOOM_ACCUMULATORS_32(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define WARPLOOM_ACCUMULATORS_40(d) WARPLOOM_ACCUMULATORS_36(d), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WARPLOOM_ACCUMULATORS_44(d) WARPLOOM_ACCUMULATORS_40(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define WARPLOOM_ACCUMULATORS_48(d) WARPLOOM_ACCUMULATORS_44(d), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WARPLOOM_ACCUMULATORS_52(d) WARPLOOM_ACCUMULATORS_48(d), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define WARPLOOM_ACCUMULATORS_56(d) WARPLOOM_ACCUMULATORS_52(d), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WARPLOOM_ACCUMULATORS_60(d) WARPLOOM_ACCUMULATORS_56(d), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define WARPLOOM_ACCUMULATORS_64(d) WARPLOOM_ACCUMULATORS_60(d), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WARPLOOM_ACCUMULATORS_68(d) WARPLOOM_ACCUMULATORS_64(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define WARPLOOM_ACCUMULATORS_72(d) WARPLOOM_ACCUMULATORS_68(d), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WARPLOOM_ACCUMULATORS_76(d) WARPLOOM_ACCUMULATORS_72(d), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define WARPLOOM_ACCUMULATORS_80(d) WARPLOOM_ACCUMULATORS_76(d), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WARPLOOM_ACCUMULATORS_84(d) WARPLOOM_ACCUMULATORS_80(d), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define WARPLOOM_ACCUMULATORS_88(d) WARPLOOM_ACCUMULATORS_84(d), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define WARPLOOM_ACCUMULATORS_92(d) WARPLOOM_ACCUMULATORS_88(d), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define WARPLOOM_ACCUMULATORS_96(d) WARPLOOM_ACCUMULATORS_92(d), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WARPLOOM_ACCUMULATORS_100(d) WARPLOOM_ACCUMULATORS_96(d), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define WARPLOOM_ACCUMULATORS_104(d) WARPLOOM_ACCUMULATORS_100(d), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define WARPLOOM_ACCUMULATORS_108(d) WARPLOOM_ACCUMULATORS_104(d), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define WARPLOOM_ACCUMULATORS_112(d) WARPLOOM_ACCUMULATORS_108(d), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WARPLOOM_ACCUMULATORS_116(d) WARPLOOM_ACCUMULATORS_112(d), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define WARPLOOM_ACCUMULATORS_120(d) WARPLOOM_ACCUMULATORS_116(d), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define WARPLOOM_ACCUMULATORS_124(d) WARPLOOM_ACCUMULATORS_120(d), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define WARPLOOM_ACCUMULATORS_128(d) WARPLOOM_ACCUMULATORS_124(d), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// Calls ROW(columns, accumulators, type, the numbers of the first operands after the accumulators) for every width of a
// wgmma.
#define WARPLOOM_WGMMA_WIDTHS(ROW, type) \
  ROW(8, 4, type, 4, 5, 6, 7, 8, 9, 10) \
  ROW(16, 8, type, 8, 9, 10, 11, 12, 13, 14) \
  ROW(24, 12, type, 12, 13, 14, 15, 16, 17, 18) \
  ROW(32, 16, type, 16, 17, 18, 19, 20, 21, 22) \
  ROW(40, 20, type, 20, 21, 22, 23, 24, 25, 26) \
  ROW(48, 24, type, 24, 25, 26, 27, 28, 29, 30) \
  ROW(56, 28, type, 28, 29, 30, 31, 32, 33, 34) \
  ROW(64, 32, type, 32, 33, 34, 35, 36, 37, 38) \
  ROW(72, 36, type, 36, 37, 38, 39, 40, 41, 42) \
  ROW(80, 40, type, 40, 41, 42, 43, 44, 45, 46) \
  ROW(88, 44, type, 44, 45, 46, 47, 48, 49, 50) \
  ROW(96, 48, type, 48, 49, 50, 51, 52, 53, 54) \
  ROW(104, 52, type, 52, 53, 54, 55, 56, 57, 58) \
  ROW(112, 56, type, 56, 57, 58, 59, 60, 61, 62) \
  ROW(120, 60, type, 60, 61, 62, 63, 64, 65, 66) \
  ROW(128, 64, type, 64, 65, 66, 67, 68, 69, 70) \
  ROW(136, 68, type, 68, 69, 70, 71, 72, 73, 74) \
  ROW(144, 72, type, 72, 73, 74, 75, 76, 77, 78) \
  ROW(152, 76, type, 76, 77, 78, 79, 80, 81, 82) \
  ROW(160, 80, type, 80, 81, 82, 83, 84, 85, 86) \
  ROW(168, 84, type, 84, 85, 86, 87, 88, 89, 90) \
  ROW(176, 88, type, 88, 89, 90, 91, 92, 93, 94) \
  ROW(184, 92, type, 92, 93, 94, 95, 96, 97, 98) \
  ROW(192, 96, type, 96, 97, 98, 99, 100, 101, 102) \
  ROW(200, 100, type, 100, 101, 102, 103, 104, 105, 106) \
  ROW(208, 104, type, 104, 105, 106, 107, 108, 109, 110) \
  ROW(216, 108, type, 108, 109, 110, 111, 112, 113, 114) \
  ROW(224, 112, type, 112, 113, 114, 115, 116, 117, 118) \
  ROW(232, 116, type, 116, 117, 118, 119, 120, 121, 122) \
  ROW(240, 120, type, 120, 121, 122, 123, 124, 125, 126) \
  ROW(248, 124, type, 124, 125, 126, 127, 128, 129, 130) \
  ROW(256, 128, type, 128, 129, 130, 131, 132, 133, 134)
// clang-format on
