// The pictures of docs/tile-maps.md: where a matrix's elements live in registers and in shared memory, drawn from the
// functions of kernels/geometry that the kernels use.
#pragma once

#include <vector>

#include "sim/document_pictures.h"

namespace warploom::sim {

std::vector<DocumentPicture> map_pictures();

}  // namespace warploom::sim
