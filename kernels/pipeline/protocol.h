// A pipeline's barrier protocol as data: the barriers with their arrival counts, the slots they guard, and for every
// role (a warp or warpgroup) the operations it performs, in order. No operation depends on loaded values, so a role is
// a straight line once the sizes are known. `warploom check` proves these descriptions; docs/protocol-checker.md.
//
// A role is written once, as a function template over an *actor*. With `Recorder` (below) it becomes a list of
// operations for the checker; in a kernel the actor is a struct of the same members that performs them:
//
//   wait(mbarrier, phase)              mbarrier.try_wait.parity until `phase` has ended; the parity is phase & 1
//   arrive(mbarrier, phase)            mbarrier.arrive by one elected lane
//   expect(mbarrier, phase, loads)     mbarrier.arrive.expect_tx for the bytes of `loads` loads
//   load(slot, use, mbarrier, phase)   a TMA load into the slot; its bytes complete on the mbarrier
//   copy(slot, use), commit()          the role's own cp.async copies into a slot; close a group of them
//   wait_groups(pending)               cp.async.wait_group
//   write(slot, use)                   ordinary stores
//   read_begin(slot, use)              the first instruction that reads the slot (a wgmma reads until it is waited for)
//   read_end(slot, use)                the last read is over, and no other is open
//   read_end_older(slot, use)          the same, while the read that began after it goes on
//   sync(barrier), signal(barrier)     bar.sync, bar.arrive on a named barrier
//   has_tile(tile), steps(tile)        is there another work item, and how many steps it has
//   prologue(tile), activate(step),    where a kernel does the work of a tile or step; no operation for the checker
//   epilogue(tile)
//
// `phase` and `use` count from 0 and only grow: the phase of the barrier that the author means, and which filling of
// the slot. A kernel needs the lowest bit of a phase; the checker compares the rest with what the hardware would do.
#pragma once

#include "geometry/host_device.h"

namespace warploom::pipeline {

inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;

/// What a protocol is described for.
struct Sizes {
  int stages = 2;                     ///< slots of a ring
  int steps = 4;                      ///< steps (key tiles, K slices) of a work item
  int consumers = 2;                  ///< consumer warpgroups
  int tiles = 2;                      ///< work items that this CTA gets
  bool producer_exits_early = false;  ///< the producer returns after its last load instead of draining the rings
  bool uneven_tiles = false;          ///< every second work item has half the steps
};

enum class OpKind : unsigned char {
  wait,    ///< object: mbarrier
  arrive,  ///< object: mbarrier
  expect,  ///< object: mbarrier; use: number of loads
  load,    ///< object: slot; barrier: the mbarrier that gets the bytes
  copy,    ///< object: slot
  commit,
  wait_groups,   ///< use: groups that may be pending
  write,         ///< object: slot
  read_begin,    ///< object: slot
  read_end,      ///< object: slot
  named_arrive,  ///< object: named barrier
  named_wait,    ///< object: named barrier; the second half of bar.sync
};

struct Op {
  OpKind kind = OpKind::commit;
  bool parity = false;  ///< of a wait: what the instruction is given
  short object = -1;
  short use = 0;
  short barrier = -1;
  short phase = 0;  ///< the phase meant
};

/// A name for messages: "full", "full[1]" or "stage[1.0]".
struct Label {
  const char* word = "";
  int index = -1;
  int part = -1;
};

struct Mbarrier {
  Label name;
  int arrivals = 0;  ///< the count it is initialised with
  int id = 0;        ///< its place in the CTA's array of mbarriers
};

struct NamedBarrier {
  Label name;
  int threads = 0;  ///< the thread count of bar.sync and bar.arrive
  int id = 0;       ///< 0..15
};

/// A piece of shared memory that one producer fills and consumers read.
struct Slot {
  Label name;
};

inline constexpr int kMaxOps = 1024;
inline constexpr int kMaxRoles = 7;
inline constexpr int kMaxMbarriers = 32;
inline constexpr int kMaxNamedBarriers = 16;
inline constexpr int kMaxSlots = 24;

struct Role {
  Label name;
  int threads = 0;
  int length = 0;
  Op ops[kMaxOps] = {};
};

class Recorder;

struct Protocol {
  Sizes sizes;
  int num_roles = 0, num_mbarriers = 0, num_named = 0, num_slots = 0;
  bool overflow = false;  ///< a table above was too small; the protocol is not usable
  Mbarrier mbarriers[kMaxMbarriers] = {};
  NamedBarrier named[kMaxNamedBarriers] = {};
  Slot slots[kMaxSlots] = {};
  Role roles[kMaxRoles] = {};

  WARPLOOM_HD constexpr explicit Protocol(const Sizes& n) : sizes(n) {}

  // The add functions return the handle that operations use.

  WARPLOOM_HD constexpr int add_mbarrier(Label name, int arrivals) {
    if (num_mbarriers == kMaxMbarriers) return fail();
    mbarriers[num_mbarriers] = {name, arrivals, num_mbarriers};
    return num_mbarriers++;
  }

  WARPLOOM_HD constexpr int add_named_barrier(Label name, int threads, int id) {
    if (num_named == kMaxNamedBarriers) return fail();
    named[num_named] = {name, threads, id};
    return num_named++;
  }

  WARPLOOM_HD constexpr int add_slot(Label name) {
    if (num_slots == kMaxSlots) return fail();
    slots[num_slots] = {name};
    return num_slots++;
  }

  /// A new role; what is done with the recorder becomes its program.
  WARPLOOM_HD constexpr Recorder add_role(Label name, int threads);

  WARPLOOM_HD constexpr int fail() {
    overflow = true;
    return 0;
  }
};

/// The actor that writes a role's operations down.
class Recorder {
 public:
  WARPLOOM_HD constexpr Recorder(Protocol& protocol, int role) : protocol_(&protocol), role_(role) {}

  WARPLOOM_HD constexpr void wait(int mbarrier, int phase) {
    push({OpKind::wait, (phase & 1) != 0, to_short(mbarrier), 0, -1, to_short(phase)});
  }
  WARPLOOM_HD constexpr void arrive(int mbarrier, int phase) {
    push({OpKind::arrive, false, to_short(mbarrier), 0, -1, to_short(phase)});
  }
  WARPLOOM_HD constexpr void expect(int mbarrier, int phase, int loads) {
    push({OpKind::expect, false, to_short(mbarrier), to_short(loads), -1, to_short(phase)});
  }
  WARPLOOM_HD constexpr void load(int slot, int use, int mbarrier, int phase) {
    push({OpKind::load, false, to_short(slot), to_short(use), to_short(mbarrier), to_short(phase)});
  }
  WARPLOOM_HD constexpr void copy(int slot, int use) { push_slot(OpKind::copy, slot, use); }
  WARPLOOM_HD constexpr void commit() { push({OpKind::commit}); }
  WARPLOOM_HD constexpr void wait_groups(int pending) {
    push({OpKind::wait_groups, false, -1, to_short(pending), -1, 0});
  }
  WARPLOOM_HD constexpr void write(int slot, int use) { push_slot(OpKind::write, slot, use); }
  WARPLOOM_HD constexpr void read_begin(int slot, int use) { push_slot(OpKind::read_begin, slot, use); }
  WARPLOOM_HD constexpr void read_end(int slot, int use) { push_slot(OpKind::read_end, slot, use); }
  WARPLOOM_HD constexpr void read_end_older(int slot, int use) { read_end(slot, use); }
  WARPLOOM_HD constexpr void signal(int named) {
    push({OpKind::named_arrive, false, to_short(named), 0, -1, uses_of(named)});
  }
  WARPLOOM_HD constexpr void sync(int named) {
    const short use = uses_of(named);
    push({OpKind::named_arrive, false, to_short(named), 0, -1, use});
    push({OpKind::named_wait, false, to_short(named), 0, -1, use});
  }

  WARPLOOM_HD constexpr bool has_tile(int tile) const { return tile < protocol_->sizes.tiles; }
  WARPLOOM_HD constexpr int steps(int tile) const {
    const bool short_tile = protocol_->sizes.uneven_tiles && tile % 2 == 1;
    return short_tile ? protocol_->sizes.steps / 2 : protocol_->sizes.steps;
  }
  WARPLOOM_HD constexpr void prologue(int) const {}
  WARPLOOM_HD constexpr void activate(int) const {}
  WARPLOOM_HD constexpr void epilogue(int) const {}

 private:
  WARPLOOM_HD static constexpr short to_short(int value) { return static_cast<short>(value); }

  WARPLOOM_HD constexpr void push(const Op& op) {
    Role& role = protocol_->roles[role_];
    if (role.length == kMaxOps) {
      protocol_->fail();
    } else {
      role.ops[role.length++] = op;
    }
  }

  WARPLOOM_HD constexpr void push_slot(OpKind kind, int slot, int use) {
    push({kind, false, to_short(slot), to_short(use), -1, 0});
  }

  /// How often the role has taken part in a named barrier: every participant takes part in every use of it.
  WARPLOOM_HD constexpr short uses_of(int named) const {
    const Role& role = protocol_->roles[role_];
    short uses = 0;
    for (int i = 0; i < role.length; ++i) {
      uses = static_cast<short>(uses + (role.ops[i].kind == OpKind::named_arrive && role.ops[i].object == named));
    }
    return uses;
  }

  Protocol* protocol_;
  int role_;
};

WARPLOOM_HD constexpr Recorder Protocol::add_role(Label name, int threads) {
  if (num_roles == kMaxRoles) {
    fail();
    return Recorder(*this, 0);
  }
  roles[num_roles].name = name;
  roles[num_roles].threads = threads;
  return Recorder(*this, num_roles++);
}

}  // namespace warploom::pipeline
