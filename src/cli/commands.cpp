#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/bench_command.h"
#include "cli/calibrate_command.h"
#include "cli/check_command.h"
#include "cli/command.h"
#include "cli/compile_command.h"
#include "cli/demo_command.h"
#include "cli/explain_command.h"
#include "cli/info_command.h"
#include "cli/simulate_command.h"
#include "cli/trace_command.h"
#include "cli/verify_command.h"
#include "warploom/warploom.h"

namespace warploom::cli {

void add_commands(CLI::App& app) {
  add_info_command(app);
  add_demo_command(app);
  add_bench_command(app);
  add_explain_command(app);
  add_compile_command(app);
  add_verify_command(app);
  add_simulate_command(app);
  add_check_command(app);
  add_trace_command(app);
  add_calibrate_command(app);
}

int run_command(int argc, const char* const* argv) {
  CLI::App app("Fused attention for generative recommenders and transformers", "warploom");
  app.set_version_flag("--version", std::string("warploom ") + warploom_version());
  app.require_subcommand(1);
  app.failure_message(usage_message);
  app.footer("`warploom COMMAND --help` shows a command's options and examples.");
  add_commands(app);
  try {
    app.parse(argc, argv);
    return exit_success;
  } catch (const CLI::RuntimeError& error) {  // a subcommand's exit code, see on_run
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? exit_success : exit_usage;
  } catch (const std::bad_alloc&) {
    return report(Status::runtime_error("memory ran out; ask for a smaller problem"));
  } catch (const std::exception& error) {
    return report(Status::runtime_error(error.what()));
  }
}

}  // namespace warploom::cli
