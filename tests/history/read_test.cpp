#include "history/read.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace warploom::history {
namespace {

const std::string header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n";

ReadResult read_or_fail(const std::string& text, const ReadOptions& options = {}) {
  Result<ReadResult> result = read_histories(text, "events", options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : ReadResult{};
}

std::string error_of(const std::string& text, const ReadOptions& options = {}) {
  const Result<ReadResult> result = read_histories(text, "events", options);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), result.ok() ? StatusCode::ok : StatusCode::runtime_error);
  return result.status().message();
}

void expect_error(const std::string& text, const std::vector<std::string>& pieces, const ReadOptions& options = {}) {
  const std::string message = error_of(text, options);
  for (const std::string& piece : pieces)
    EXPECT_NE(message.find(piece), std::string::npos) << message << "\nlacks " << piece;
}

TEST(ReadHistories, GroupsByUserAndSortsByTime) {
  const ReadResult result = read_or_fail(header + "7\tx\t3\t30\n9\ty\t4\t5\n7\ty\t1\t10\n7\tz\t2\t20\n");
  EXPECT_EQ(result.lines, 4);
  EXPECT_EQ(result.histories.user_ids, (std::vector<std::string>{"7", "9"}));
  EXPECT_EQ(result.histories.offsets, (std::vector<std::int64_t>{0, 3, 4}));
  EXPECT_EQ(result.histories.items, (std::vector<std::int32_t>{1, 2, 0, 1}));  // x = 0, y = 1, z = 2
  EXPECT_EQ(result.histories.timestamps, (std::vector<std::int64_t>{10, 20, 30, 5}));
  EXPECT_EQ(result.histories.num_items, 3);
}

TEST(ReadHistories, EqualTimestampsKeepTheFilesOrder) {
  std::string text = header;
  for (int i = 0; i < 100; ++i) text += "u\titem" + std::to_string(i) + "\t1\t" + std::to_string(i % 2) + "\n";
  const Histories histories = read_or_fail(text).histories;
  for (std::int32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(histories.items[static_cast<std::size_t>(i)], 2 * i);
    EXPECT_EQ(histories.items[static_cast<std::size_t>(50 + i)], 2 * i + 1);
  }
}

TEST(ReadHistories, TakesBothLineEndsAMissingLastOneAndAByteOrderMark) {
  const std::string unix_text = "user_id,item_id,timestamp\na,b,1\nc,d,2\n";
  const std::string dos_text = "\xEF\xBB\xBFuser_id,item_id,timestamp\r\na,b,1\r\nc,d,2";
  EXPECT_EQ(read_or_fail(unix_text).histories.user_ids, read_or_fail(dos_text).histories.user_ids);
  EXPECT_EQ(read_or_fail(dos_text).histories.timestamps, (std::vector<std::int64_t>{1, 2}));
}

TEST(ReadHistories, SkipsEmptyLinesButCountsThem) {
  EXPECT_EQ(read_or_fail(header + "\n1\t2\t3\t4\n\r\n").lines, 1);
  expect_error(header + "\n\nbroken\n", {"events:4: "});
}

TEST(ReadHistories, HeaderOnlyHasNoUsers) {
  for (const std::string& text : {header, header.substr(0, header.size() - 1)}) {
    const Histories histories = read_or_fail(text).histories;
    EXPECT_EQ(histories.num_users(), 0);
    EXPECT_EQ(histories.num_events(), 0);
    EXPECT_EQ(histories.longest(), 0);
  }
}

TEST(ReadHistories, EmptyFileIsAnError) {
  expect_error("", {"events: the file is empty", "header"});
  expect_error("\xEF\xBB\xBF", {"events: the file is empty"});
  expect_error("\n1,2,3\n", {"events:1: the header line is empty"});
}

TEST(ReadHistories, IdsAreTextOfAnyLength) {
  const std::string huge(5000, '9');
  const Histories histories =
      read_or_fail(header + huge + "\t" + huge + "\t1\t1\n007\t7\t1\t1\n7\t07\t1\t1\n").histories;
  EXPECT_EQ(histories.num_users(), 3);
  EXPECT_EQ(histories.num_items, 3);
  EXPECT_EQ(histories.user_ids[0], huge);
}

TEST(ReadHistories, TimestampsMayBeNegativeOrFractional) {
  const Histories histories =
      read_or_fail("user_id,item_id,timestamp\nu,a,-5\nu,b,881250949.75\nu,c,1e3\nu,d,-0.5\n").histories;
  EXPECT_EQ(histories.timestamps, (std::vector<std::int64_t>{-5, -1, 1000, 881250949}));
}

TEST(ReadHistories, BrokenTimestampsAreNamedWithTheirLine) {
  const std::string csv = "user_id,item_id,timestamp\nu,a,1\nu,b,";
  for (const char* text : {"nan", "NaN", "-nan", "yesterday", "1 ", " 1", "", "12x", "0x10", "+1", "1.5.2"}) {
    expect_error(csv + text + "\n",
                 {"events:3: timestamp \"" + std::string(text) + "\" is not a number", "seconds since 1970"});
  }
  for (const char* text :
       {"inf", "-inf", "1e300", "1e999", "9223372036854775807", "99999999999999999999", "-9223372036854775808"}) {
    expect_error(csv + text + "\n", {"events:3: timestamp \"" + std::string(text) + "\" is out of range"});
  }
}

TEST(ReadHistories, DifferencesOfTimestampsFit) {
  const Histories histories =
      read_or_fail("user_id,item_id,timestamp\nu,a,4611686018427387903\nu,b,-4611686018427387903\n").histories;
  std::int64_t difference = 0;
  EXPECT_FALSE(__builtin_sub_overflow(histories.timestamps[1], histories.timestamps[0], &difference));
}

TEST(ReadHistories, QuotedFieldsAsInRfc4180) {
  const Histories histories =
      read_or_fail("\"user_id\",item_id,note,timestamp\n\"a,\"\"b\"\"\",\"\"\"\",\"\",\"12\"\n").histories;
  EXPECT_EQ(histories.user_ids[0], "a,\"b\"");
  EXPECT_EQ(histories.timestamps[0], 12);
  const std::string csv = "user_id,item_id,timestamp\n";
  expect_error(csv + "\"a,b,1\nc,d,2\n", {"events:2: ", "quoted field does not end"});
  expect_error(csv + "\"a\"x,b,1\n", {"events:2: ", "closing quote"});
}

TEST(ReadHistories, TabSeparatedFilesHaveNoQuotes) {
  EXPECT_EQ(read_or_fail(header + "\"a\tb\t1\t1\n").histories.user_ids[0], "\"a");
}

TEST(ReadHistories, ColumnsAreFoundByName) {
  ReadOptions options;
  options.user_column = "who";
  options.item_column = "what";
  options.time_column = "when";
  const Histories histories = read_or_fail("when,extra,who,what\n5,,me,book\n", options).histories;
  EXPECT_EQ(histories.user_ids[0], "me");
  EXPECT_EQ(histories.timestamps[0], 5);
  expect_error("when,who,thing\n",
               {"events:1: no column is named \"what\"", "\"when\", \"who\", \"thing\"", "--item-column"}, options);
  expect_error("when,who,what,who\n", {"events:1: two columns are named \"who\""}, options);
}

TEST(ReadHistories, FieldCountMustBeTheHeaders) {
  expect_error(header + "1\t2\t3\n", {"events:2: ", "3 fields", "header has 4", "--skip-broken"});
  expect_error(header + "1\t2\t3\t4\t5\n", {"events:2: ", "5 fields"});
}

TEST(ReadHistories, EmptyIdsAreErrors) {
  expect_error(header + "\t2\t3\t4\n", {"events:2: the user id is empty"});
  expect_error(header + "1\t\t3\t4\n", {"events:2: the item id is empty"});
}

TEST(ReadHistories, NulBytesAndControlCharactersAreShownEscaped) {
  expect_error(header + std::string("1\t2\0\t3\t4\n", 9), {"events:2: ", "NUL byte"});
  expect_error("user_id,item_id,timestamp\nu,a,\x1b[31m\n", {"\"\\x1b[31m\""});
  expect_error(std::string("\0\0\0\0", 4), {"events:1: ", "NUL byte"});
}

TEST(ReadHistories, VeryLongLinesAreRefused) {
  expect_error(header + std::string(static_cast<std::size_t>(max_line_bytes) + 1, 'x') + "\n", {"events:2: ", "limit"});
}

TEST(ReadHistories, SkipBrokenGoesOnAndCounts) {
  ReadOptions options;
  options.skip_broken = true;
  const ReadResult result = read_or_fail(header + "1\t2\t3\t4\nbroken\n1\t3\t3\tx\n1\t4\t3\t5\n", options);
  EXPECT_EQ(result.lines, 2);
  EXPECT_EQ(result.broken_lines, 2);
  EXPECT_EQ(result.first_broken, "events:3: the line has 1 fields where the header has 4");
  EXPECT_EQ(result.histories.num_events(), 2);
}

TEST(ReadHistories, AUserWithOnlyBrokenLinesDoesNotAppear) {
  ReadOptions options;
  options.skip_broken = true;
  EXPECT_EQ(read_or_fail(header + "ghost\t2\t3\tx\n1\t2\t3\t4\n", options).histories.user_ids,
            (std::vector<std::string>{"1"}));
}

TEST(ReadHistoryFile, ReadsFromDiskAndNamesWhatIsMissing) {
  const std::string path = ::testing::TempDir() + "warploom_history_test.inter";
  std::ofstream(path, std::ios::binary) << header << "1\t2\t3\t4\n";
  const Result<ReadResult> result = read_history_file(path);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->lines, 1);
  std::remove(path.c_str());
  EXPECT_NE(read_history_file(path).status().message().find("No such file"), std::string::npos);
  EXPECT_NE(read_history_file(::testing::TempDir()).status().message().find("folder"), std::string::npos);
}

}  // namespace
}  // namespace warploom::history
