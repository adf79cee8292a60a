#include "sim/map_pictures.h"

#include <algorithm>
#include <functional>
#include <string>

#include "geometry/fragment.h"
#include "geometry/swizzle.h"

namespace warploom::sim {
namespace {

using geometry::Element;

constexpr int kCellHeight = 22, kLeft = 44, kTop = 58;

/// What a cell of a grid says. Colour: 0..7, a hue.
struct Cell {
  std::string text;
  int colour = 0;
};

struct Grid {
  std::string title, rows, columns;  ///< what the two axes count
  int height = 0, width = 0;         ///< in cells
  int cell_width = 44;
  int group_height = 8, group_width = 8;  ///< cells between heavy lines
  std::function<Cell(int row, int column)> cell = {};
};

constexpr const char* kStyle =
    "<style>.wm{font:12px "
    "system-ui,sans-serif;--ink:#1b1f24;--dim:#6a737d;--paper:#ffffff}"
    "@media(prefers-color-scheme:dark){.wm{--ink:#e6e9ed;--dim:#9aa4af;--paper:#14181d}}"
    ".wm text{fill:var(--ink)}.wm .dim{fill:var(--dim);font-size:10px}.wm .paper{fill:var(--paper)}"
    ".wm .on{fill:#101418;font-size:10px;text-anchor:middle}.wm .cell{stroke:var(--paper)}"
    ".wm .heavy{stroke:var(--ink);stroke-width:1.5;fill:none}</style>";

std::string text_at(int x, int y, const char* style, const std::string& text) {
  return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\"" + style + ">" + text + "</text>\n";
}

std::string svg_of(const Grid& grid) {
  const int width = std::max(kLeft + grid.width * grid.cell_width + 16, 16 + 7 * static_cast<int>(grid.title.size()));
  const int height = kTop + grid.height * kCellHeight + 16;
  const std::string size = "\" width=\"" + std::to_string(width) + "\" height=\"" + std::to_string(height) + "\"";
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"wm\" role=\"img\" viewBox=\"0 0 " +
                    std::to_string(width) + " " + std::to_string(height) + size + ">" + kStyle +
                    "\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";
  svg += text_at(12, 20, "", grid.title);
  svg += text_at(12, 38, " class=\"dim\"", grid.rows + " downwards, " + grid.columns + " to the right");
  for (int column = 0; column < grid.width; ++column) {
    svg += text_at(kLeft + column * grid.cell_width + grid.cell_width / 2, kTop - 5,
                   " class=\"dim\" text-anchor=\"middle\"", std::to_string(column));
  }
  for (int row = 0; row < grid.height; ++row) {
    svg += text_at(kLeft - 6, kTop + row * kCellHeight + 15, " class=\"dim\" text-anchor=\"end\"", std::to_string(row));
    for (int column = 0; column < grid.width; ++column) {
      const Cell cell = grid.cell(row, column);
      const int x = kLeft + column * grid.cell_width, y = kTop + row * kCellHeight;
      svg += "<rect class=\"cell\" x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
             std::to_string(grid.cell_width) + "\" height=\"" + std::to_string(kCellHeight) + "\" fill=\"hsl(" +
             std::to_string(cell.colour * 45) + " 70% 75%)\"/>";
      svg += text_at(x + grid.cell_width / 2, y + 15, " class=\"on\"", cell.text);
    }
  }
  for (int row = 0; row < grid.height; row += grid.group_height) {
    for (int column = 0; column < grid.width; column += grid.group_width) {
      svg += "<rect class=\"heavy\" x=\"" + std::to_string(kLeft + column * grid.cell_width) + "\" y=\"" +
             std::to_string(kTop + row * kCellHeight) + "\" width=\"" +
             std::to_string(std::min(grid.group_width, grid.width - column) * grid.cell_width) + "\" height=\"" +
             std::to_string(std::min(grid.group_height, grid.height - row) * kCellHeight) + "\"/>\n";
    }
  }
  return svg + "</svg>\n";
}

/// Cells "lane.index" for a map (holder, index) -> element, where each index stands for `neighbours` elements of a row.
Grid map_grid(std::string title, std::string rows, std::string columns, int height, int width, int holders, int indices,
              int neighbours, const std::function<Element(int holder, int index)>& element_of) {
  std::vector<Cell> cells(static_cast<std::size_t>(height * width));
  for (int holder = 0; holder < holders; ++holder) {
    for (int index = 0; index < indices; ++index) {
      const Element at = element_of(holder, index);
      for (int n = 0; n < neighbours; ++n) {
        const int row = at.row, column = at.column + n;
        if (row >= height || column >= width) continue;
        cells[static_cast<std::size_t>(row * width + column)] = {std::to_string(holder) + "." + std::to_string(index),
                                                                 holder / 4 % 8};
      }
    }
  }
  Grid grid{std::move(title), std::move(rows), std::move(columns), height, width};
  grid.cell = [cells = std::move(cells), width](int row, int column) {
    return cells[static_cast<std::size_t>(row * width + column)];
  };
  return grid;
}

Grid chunks(std::string title, std::string columns, const std::function<Cell(int row, int place)>& cell) {
  Grid grid{std::move(title), "rows of a tile", std::move(columns), 8, geometry::kPanelChunks, 60};
  grid.cell = cell;
  return grid;
}

/// Who addresses what of a 16x16 block; a colour is a register.
Grid addresses(std::string title, geometry::BlockOrder order) {
  Grid grid{std::move(title), "rows", "16-byte chunks", 16, 2, 60};
  grid.group_width = 1;
  grid.cell = [order](int row, int chunk) {
    int lane = 0;
    while (geometry::ldmatrix_row(lane, order) != row || geometry::ldmatrix_chunk(lane, order) != chunk) ++lane;
    return Cell{"lane " + std::to_string(lane), lane / 8};
  };
  return grid;
}

/// What an ldmatrix phase (eight lanes, eight rows, one chunk) reads of a panel.
Grid phase(bool swizzled) {
  constexpr int kChunk = 2;
  return chunks(swizzled ? "One phase of ldmatrix, swizzled: eight different places, one turn"
                         : "One phase of ldmatrix, not swizzled: four banks, eight turns",
                "16-byte places, four banks each", [swizzled](int row, int place) {
                  const bool read = place == (swizzled ? geometry::swizzled_chunk(row, kChunk) : kChunk);
                  return Cell{read ? "row " + std::to_string(row) : "", read ? place : 4};
                });
}

}  // namespace

std::vector<DocumentPicture> map_pictures() {
  using geometry::a_element, geometry::b_element, geometry::c_element, geometry::fragment_element;
  std::vector<DocumentPicture> pictures;
  const auto add = [&pictures](const char* file, const Grid& grid) { pictures.push_back({file, svg_of(grid)}); };
  add("map-fragment.svg", map_grid("A fragment: lane.register of each element", "rows", "columns", 8, 8, 32, 1, 2,
                                   [](int lane, int) { return fragment_element(lane); }));
  add("map-a.svg", map_grid("A of mma.m16n8k16: lane.register", "m", "k", 16, 16, 32, 4, 2, a_element));
  add("map-b.svg", map_grid("B of mma.m16n8k16: lane.register", "n", "k", 8, 16, 32, 2, 2, b_element));
  add("map-c.svg", map_grid("C of mma.m16n8k16: lane.float", "m", "n", 16, 8, 32, 4, 1, c_element));
  add("map-wgmma.svg", map_grid("Accumulators of wgmma, the first 16 columns: thread.float", "rows, of warp 0",
                                "columns", 16, 16, 128, 8, 1, geometry::accumulator_element));
  add("map-ldmatrix.svg", addresses("ldmatrix.x4, order a: the lane that addresses each 16 bytes of a 16x16 block",
                                    geometry::BlockOrder::a));
  add("map-ldmatrix-b.svg", addresses("The same, order b", geometry::BlockOrder::b));
  add("map-swizzle.svg", chunks("The swizzle: the chunk that stands at each place",
                                "places of 16 bytes, four banks each", [](int row, int place) {
                                  int chunk = 0;
                                  while (geometry::swizzled_chunk(row, chunk) != place) ++chunk;
                                  return Cell{std::to_string(chunk), chunk};
                                }));
  add("map-phase-plain.svg", phase(false));
  add("map-phase-swizzled.svg", phase(true));
  add("map-copy.svg",
      chunks("A warp's copy to shared memory: the lane that writes each place", "places of 16 bytes",
             [](int row, int place) {
               const int chunk = geometry::swizzled_chunk(row, place);  // its own inverse
               unsigned lane = 0;
               while (geometry::copy_place(lane).row != row % 4 || geometry::copy_place(lane).chunk != chunk) ++lane;
               return Cell{(row < 4 ? "" : "next ") + std::to_string(lane), row % 4};
             }));
  return pictures;
}

}  // namespace warploom::sim
