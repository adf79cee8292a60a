// A module of PTX, parsed into instructions that run_grid executes (PTX ISA, "Syntax", "State Spaces, Types, and
// Variables"). Of the ISA, what this project's kernels use; anything else is refused when the module is loaded.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace warploom::emulator {

/// A kernel did what a GPU would not survive or not define, or the emulator does not know an instruction.
struct EmulationError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Thread;
struct Warp;

enum class Special : std::uint8_t {
  none,
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  smid,
  clock,
  cluster_ctarank,
  cluster_nctarank,
  parameters,
  local
};

/// One register, constant or special register; an address adds `value` to it.
struct Operand {
  int slot = -1;                    ///< the register's number; -1: none
  Special special = Special::none;  ///< read when slot is -1
  std::uint64_t value = 0;          ///< the constant, or what is added to the register
  bool negated = false;             ///< !p
};

enum class After { next, jump, block, exit };

struct Instruction {
  using Alone = After (*)(Thread&, const Instruction&);
  using Together = void (*)(Warp&, const Instruction&, std::uint32_t lanes);

  Alone alone = nullptr;        ///< one thread's part
  Together together = nullptr;  ///< instead: the whole warp's, once all named lanes have come
  bool warpgroup = false;       ///< together: the four warps of a warpgroup come to it; called for the first of them
  int mask_operand = -1;        ///< together: the operand that names the lanes; -1: all of the warp
  Operand predicate;            ///< slot -1: always executed
  std::vector<std::vector<Operand>> operands;  ///< vectors and address tuples have several elements
  int target = -1;                             ///< of a branch
  std::array<int, 4> numbers = {};             ///< what the opcode says: widths, shapes, modes
  int line = 0;                                ///< in the PTX text
  const std::string* text = nullptr;
};

struct Parameter {
  int offset = 0;
  int bytes = 0;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  int parameter_bytes = 0;
  int registers = 0;
  int static_shared_bytes = 0;
  int local_bytes = 0;  ///< of a thread, a multiple of 16
  int cluster = 1;
  std::vector<Instruction> code;
  std::vector<std::string> texts;  ///< Instruction::text points here
};

struct Module {
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
  std::vector<std::unique_ptr<std::uint64_t[]>> globals;  ///< memory of .global variables
};

/// Error: EmulationError naming the line and what is not understood.
std::unique_ptr<Module> parse_module(const std::string& ptx);

/// Fills alone or together, mask_operand and numbers of `instruction` for an opcode such as "add.s32".
/// Error: EmulationError for an opcode that is not known.
void decode(const std::string& opcode, Instruction& instruction);

/// Shared memory begins here in every CTA, so that address 0 is never valid.
inline constexpr std::uint32_t kSharedBase = 1024;
/// A shared address of CTA r of the cluster carries r + 1 in its highest byte; 0 there is the thread's own CTA.
inline constexpr int kSharedRankShift = 24;
/// Generic addresses of shared and of local memory.
inline constexpr std::uint64_t kGenericShared = 1ull << 62;

}  // namespace warploom::emulator
