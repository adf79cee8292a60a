#include "cli/commands.h"

int main(int argc, char** argv) {
  return warploom::cli::run_command(argc, argv);
}
