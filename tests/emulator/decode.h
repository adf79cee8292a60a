// The parts of decode(): each knows the opcodes of one source file.
#pragma once

#include <string>

#include "module.h"

namespace warploom::emulator {

/// Each fills in `instruction` and answers true when `opcode` is one of its own.
bool decode_arithmetic(const std::string& opcode, Instruction& instruction);
bool decode_moves(const std::string& opcode, Instruction& instruction);
bool decode_loads_stores(const std::string& opcode, Instruction& instruction);
bool decode_control(const std::string& opcode, Instruction& instruction);
bool decode_warp(const std::string& opcode, Instruction& instruction);
bool decode_copies(const std::string& opcode, Instruction& instruction);
bool decode_wgmma(const std::string& opcode, Instruction& instruction);

}  // namespace warploom::emulator
