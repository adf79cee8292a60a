#include "check/plant.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace warploom::check {
namespace {

using pipeline::Role;

std::vector<Op> program(const Role& role) {
  return {role.ops, role.ops + role.length};
}

void set_program(Role& role, const std::vector<Op>& ops) {
  role.length = std::min(static_cast<int>(ops.size()), pipeline::kMaxOps);
  std::copy_n(ops.begin(), role.length, role.ops);
}

template <typename Predicate>
void drop(Role& role, Predicate unwanted) {
  std::vector<Op> ops = program(role);
  std::erase_if(ops, unwanted);
  set_program(role, ops);
}

auto is(OpKind kind) {
  return [kind](const Op& op) { return op.kind == kind; };
}

bool at_named_barrier(const Op& op) {
  return op.kind == OpKind::named_arrive || op.kind == OpKind::named_wait;
}

/// The last role is a consumer in every shipped protocol, the first the producer (if there is one).
Role& last_role(Protocol& protocol) {
  return protocol.roles[protocol.num_roles - 1];
}

void missing_release(Protocol& protocol) {
  drop(last_role(protocol), is(OpKind::arrive));
}

void early_release(Protocol& protocol) {
  Role& role = last_role(protocol);
  for (int i = 1; i < role.length; ++i) {
    if (role.ops[i].kind == OpKind::arrive && role.ops[i - 1].kind == OpKind::read_end) {
      std::swap(role.ops[i], role.ops[i - 1]);
    }
  }
}

void double_release(Protocol& protocol) {
  std::vector<Op> ops = program(last_role(protocol));
  const auto release = std::find_if(ops.begin(), ops.end(), is(OpKind::arrive));
  if (release != ops.end()) ops.insert(release, Op(*release));
  set_program(last_role(protocol), ops);
}

void short_count(Protocol& protocol) {
  for (int b = 0; b < protocol.num_mbarriers; ++b) {
    if (protocol.mbarriers[b].arrivals > 1) --protocol.mbarriers[b].arrivals;
  }
}

void no_full_wait(Protocol& protocol) {
  drop(last_role(protocol), is(OpKind::wait));
}

void no_empty_wait(Protocol& protocol) {
  drop(protocol.roles[0], is(OpKind::wait));
}

void wrong_parity(Protocol& protocol) {
  Role& role = last_role(protocol);
  for (int i = 0; i < role.length; ++i) {
    if (role.ops[i].kind == OpKind::wait) role.ops[i].parity = !role.ops[i].parity;
  }
}

void no_expect(Protocol& protocol) {
  Role& producer = protocol.roles[0];
  for (int i = 0; i < producer.length; ++i) {
    if (producer.ops[i].kind == OpKind::expect) producer.ops[i].kind = OpKind::arrive;
  }
}

void unread_load(Protocol& protocol) {
  const Role& producer = protocol.roles[0];
  const auto end = std::reverse_iterator(producer.ops);
  const auto last = std::find_if(std::reverse_iterator(producer.ops + producer.length), end, is(OpKind::load));
  if (last == end) return;
  for (int r = 1; r < protocol.num_roles; ++r) {
    drop(protocol.roles[r], [&last](const Op& op) {
      const bool waits = op.kind == OpKind::wait && op.object == last->barrier && op.phase == last->phase;
      const bool reads = op.kind == OpKind::read_begin || op.kind == OpKind::read_end;
      return waits || (reads && op.object == last->object && op.use == last->use);
    });
  }
}

void no_turns(Protocol& protocol) {
  for (int r = 0; r < protocol.num_roles; ++r) drop(protocol.roles[r], at_named_barrier);
}

void no_closing_turn(Protocol& protocol) {
  for (int r = 0; r < protocol.num_roles; ++r) {
    Role& role = protocol.roles[r];
    if (role.length > 1 && role.ops[role.length - 1].kind == OpKind::named_wait) role.length -= 2;
  }
}

void shared_turn_id(Protocol& protocol) {
  for (int b = 1; b < protocol.num_named; ++b) protocol.named[b].id = protocol.named[0].id;
}

void turn_id_16(Protocol& protocol) {
  if (protocol.num_named > 0) protocol.named[protocol.num_named - 1].id = 16;
}

void group_too_many(Protocol& protocol) {
  for (int r = 0; r < protocol.num_roles; ++r) {
    Role& role = protocol.roles[r];
    for (int i = 0; i < role.length; ++i) role.ops[i].use += role.ops[i].kind == OpKind::wait_groups;
  }
}

/// Drops the barriers that stand between a slot's last read and the next copies.
void no_block_barrier(Protocol& protocol) {
  for (int r = 0; r < protocol.num_roles; ++r) {
    const std::vector<Op> ops = program(protocol.roles[r]);
    std::vector<Op> kept;
    std::array<short, pipeline::kMaxNamedBarriers> uses{};
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const bool between = i > 0 && i + 2 < ops.size() && ops[i - 1].kind == OpKind::read_end &&
                           ops[i + 1].kind == OpKind::named_wait && ops[i + 2].kind == OpKind::copy;
      if (between) {
        ++i;  // both halves of the sync
        continue;
      }
      kept.push_back(ops[i]);
      Op& op = kept.back();
      if (op.kind == OpKind::named_arrive) op.phase = uses[op.object]++;
      if (op.kind == OpKind::named_wait) op.phase = static_cast<short>(uses[op.object] - 1);
    }
    set_program(protocol.roles[r], kept);
  }
}

void uncounted_consumer(Protocol& protocol) {
  if (protocol.sizes.consumers < 2) return;
  short_count(protocol);
  missing_release(protocol);
}

constexpr Plant all_plants[] = {
    {"missing-release", "a consumer does not arrive on the empty barrier", "specialized", FaultKind::deadlock,
     &missing_release},
    {"early-release", "a consumer arrives on the empty barrier before its wgmma has read the slot", "specialized",
     FaultKind::slot_overwritten, &early_release},
    {"double-release", "a consumer arrives on the empty barrier twice", "specialized", FaultKind::double_arrival,
     &double_release},
    {"short-count", "empty barriers are initialised for one consumer too few", "specialized", FaultKind::double_arrival,
     &short_count},
    {"no-full-wait", "a consumer reads without waiting for the load", "specialized", FaultKind::slot_not_full,
     &no_full_wait},
    {"no-empty-wait", "the producer refills without waiting for the consumers", "specialized",
     FaultKind::slot_overwritten, &no_empty_wait},
    {"wrong-parity", "a consumer starts with the wrong parity", "specialized", FaultKind::phase_reuse, &wrong_parity},
    {"no-expect", "the full barrier is arrived on without the bytes of its load", "specialized",
     FaultKind::slot_not_full, &no_expect},
    {"unread-load", "the producer loads one step more than anyone waits for", "specialized", FaultKind::load_in_flight,
     &unread_load},
    {"uncounted-consumer", "a consumer reads the ring, but its release is neither counted nor given", "specialized",
     FaultKind::phase_reuse, &uncounted_consumer},
    {"no-turns", "consumers of different tiles share a ring without turns", "ping-pong", FaultKind::phase_reuse,
     &no_turns},
    {"no-closing-turn", "nobody takes the turn that is left after the last tile", "ping-pong",
     FaultKind::unbalanced_exit, &no_closing_turn},
    {"shared-turn-id", "two turns use one named barrier", "turns", FaultKind::barrier_id_reused, &shared_turn_id},
    {"turn-id-16", "a turn uses named barrier 16", "turns", FaultKind::malformed, &turn_id_16},
    {"wait-group-one-short", "cp.async.wait_group leaves one group too many pending", "cp-async",
     FaultKind::slot_not_full, &group_too_many},
    {"no-block-barrier", "copies do not wait until all have left the slot", "cp-async", FaultKind::slot_overwritten,
     &no_block_barrier},
};

}  // namespace

std::span<const Plant> plants() {
  return all_plants;
}

const Plant* find_plant(const std::string& name) {
  for (const Plant& plant : all_plants) {
    if (name == plant.name) return &plant;
  }
  return nullptr;
}

Describe planted(const Plant& plant, const pipeline::Pipeline& pipeline) {
  return [&plant, &pipeline](const Sizes& sizes) {
    Protocol protocol = pipeline.describe(sizes);
    plant.apply(protocol);
    return protocol;
  };
}

}  // namespace warploom::check
