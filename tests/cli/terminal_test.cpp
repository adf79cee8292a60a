#include "cli/terminal.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/json_text.h"

namespace warploom::cli {
namespace {

TEST(Terminal, BarsFillByEighths) {
  EXPECT_EQ(bar(0, 3, " "), "   ");
  EXPECT_EQ(bar(1, 3, " "), "███");
  EXPECT_EQ(bar(0.5, 3, " "), "█▌ ");
  EXPECT_EQ(bar(7, 2, " "), "██");
  EXPECT_EQ(display_width(bar(0.37, 20)), 20);
}

TEST(Terminal, WidthCountsCharactersNotBytesOrColours) {
  EXPECT_EQ(display_width("ab"), 2);
  EXPECT_EQ(display_width("█▌é"), 3);
  EXPECT_EQ(display_width("\x1b[31mred\x1b[0m"), 3);
}

TEST(Terminal, TablesAlign) {
  EXPECT_EQ(table({"name", "n"}, {{"a", "1"}, {"long name", "1,000"}}),
            "name           n\na              1\nlong name  1,000\n");
}

TEST(Terminal, NumbersAreShownInUnitsThatSuit) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(123), "123");
  EXPECT_EQ(bytes(0), "0 B");
  EXPECT_EQ(bytes(1536), "1.50 KiB");
  EXPECT_EQ(bytes(64.0 * 1024 * 1024), "64.0 MiB");
  EXPECT_EQ(duration(1234), "1.23 s");
  EXPECT_EQ(duration(45.67), "45.7 ms");
  EXPECT_EQ(duration(0.0078), "7.80 us");
}

TEST(JsonText, ObjectsTablesAndLists) {
  const Json value = {{"version", "1"},
                      {"empty", Json::array()},
                      {"devices", {{{"name", "cpu"}, {"cores", 2}}, {{"name", "gpu"}, {"cores", 132}}}},
                      {"cache", {{"cache_directory", "/tmp"}, {"writable", true}}}};
  EXPECT_EQ(json_text(value),
            "version  1\n"
            "empty    none\n"
            "devices\n"
            "  name  cores\n"
            "  cpu   2\n"
            "  gpu   132\n"
            "cache\n"
            "  cache directory  /tmp\n"
            "  writable         yes\n");
}

}  // namespace
}  // namespace warploom::cli
