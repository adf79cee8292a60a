// `warploom compile`: fills the cache, or a pack to ship, with kernels; works without a GPU.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_compile_command(CLI::App& app);

}  // namespace warploom::cli
