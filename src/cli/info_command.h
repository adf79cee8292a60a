// `warploom info`: devices, libraries found, cache, versions.
#pragma once

namespace CLI {
class App;
}

namespace warploom::cli {

void add_info_command(CLI::App& app);

}  // namespace warploom::cli
