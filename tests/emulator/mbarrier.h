// The mbarrier object (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"), kept in the eight
// bytes of shared memory that a kernel gives it.
#pragma once

#include <cstdint>
#include <string>

#include "grid.h"

namespace warploom::emulator {

void init_mbarrier(Cta& cta, std::uint32_t address, std::uint32_t arrivals);
/// Bytes that the phase waits for, before they arrive; negative as they arrive.
void expect_bytes(Cta& cta, std::uint32_t address, std::int64_t bytes);
void arrive(Cta& cta, std::uint32_t address);
/// Whether the phase of this parity has ended.
bool phase_ended(Cta& cta, std::uint32_t address, std::uint32_t parity);
std::string describe_mbarrier(Cta& cta, std::uint32_t address);

}  // namespace warploom::emulator
