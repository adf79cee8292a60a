// The pictures of docs/warp-specialization.md, docs/simulator.md and docs/tile-maps.md, made by `warploom simulate
// pictures docs/pictures`. A test compares the files with what this makes.
#pragma once

#include <string>
#include <vector>

#include "warploom/status.h"

namespace warploom::sim {

struct DocumentPicture {
  std::string file;  ///< name inside docs/pictures
  std::string svg;
};

Result<std::vector<DocumentPicture>> document_pictures();

}  // namespace warploom::sim
