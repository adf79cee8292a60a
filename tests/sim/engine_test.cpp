// The engine's rules one by one (simulator.md sections 1 to 3), on programs small enough to follow by hand.
#include "sim/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace warploom::sim {
namespace {

TEST(Engine, UseBlocksAndServesInOrderOfRequest) {
  Model model = sm_model();
  model.add_executor(Executor{"first", {}}.use(TC, 10, 'a').use(TC, 10, 'b'));
  model.add_executor(Executor{"second", {}}.use(TC, 7, 'c'));
  const Timeline timeline = run(model);
  // The second request of `first` is made at 10, after `second` queued at 0.
  ASSERT_EQ(timeline.intervals[TC].size(), 3u);
  EXPECT_EQ(timeline.intervals[TC][1].tag, 'c');
  EXPECT_EQ(timeline.intervals[TC][1].start, 10);
  EXPECT_EQ(timeline.intervals[TC][2].start, 17);
  EXPECT_EQ(timeline.makespan, 27);
  EXPECT_EQ(timeline.busy(TC), 27);
}

TEST(Engine, AsyncGoesOnAndArrivesAfterTheLatency) {
  Model model = sm_model();
  const Barrier full = model.add_barrier("full");
  model.add_executor(Executor{"loop", {}}.async(MEM, 5, 'L', 100, full).busy(3).wait(full, 1).busy(1));
  const Timeline timeline = run(model);
  EXPECT_EQ(timeline.makespan, 106);
  EXPECT_EQ(timeline.busy(MEM), 5);
}

TEST(Engine, MakespanIsWhenTheLastExecutorEndsNotTheLastArrival) {
  Model model = sm_model();
  const Barrier full = model.add_barrier("full");
  model.add_executor(Executor{"loop", {}}.async(MEM, 5, 'L', 100, full).busy(3));
  EXPECT_EQ(run(model).makespan, 3);
}

TEST(Engine, ZeroCyclesHoldNothingButWaitForTheResource) {
  Model model = sm_model();
  model.add_executor(Executor{"long", {}}.use(TC, 50, 'a'));
  model.add_executor(Executor{"empty", {}}.use(TC, 0, 'b'));
  const Timeline timeline = run(model);
  EXPECT_EQ(timeline.intervals[TC].size(), 1u);
  EXPECT_EQ(timeline.ends[1], 50);
}

TEST(Engine, WaitPassesAtOnceWhenTheCountIsReached) {
  Model model = sm_model();
  const Barrier bar = model.add_barrier("bar");
  model.add_executor(Executor{"loop", {}}.arrive(bar).arrive(bar).wait(bar, 2).wait(bar, 0).busy(4));
  const Timeline timeline = run(model);
  EXPECT_EQ(timeline.makespan, 4);
  EXPECT_EQ(timeline.events, 2);  // the start and the end of busy
}

TEST(Engine, WaitersGoOnInTheOrderInWhichTheyBeganToWait) {
  Model model = sm_model();
  const Barrier bar = model.add_barrier("bar");
  model.add_executor(Executor{"late", {}}.busy(2).wait(bar, 1).use(TC, 1, 'l'));
  model.add_executor(Executor{"early", {}}.busy(1).wait(bar, 1).use(TC, 1, 'e'));
  model.add_executor(Executor{"opener", {}}.busy(9).arrive(bar));
  EXPECT_EQ(run(model).intervals[TC][0].tag, 'e');
  EXPECT_EQ(run(model, {.reverse_ties = true}).intervals[TC][0].tag, 'l');
}

TEST(Engine, AnArrivalWakesOnlyTheWaitersWhoseThresholdIsMet) {
  Model model = sm_model();
  const Barrier bar = model.add_barrier("bar");
  model.add_executor(Executor{"two", {}}.wait(bar, 2).busy(1));
  model.add_executor(Executor{"one", {}}.wait(bar, 1).busy(1));
  model.add_executor(Executor{"opener", {}}.busy(5).arrive(bar).busy(5).arrive(bar));
  const Timeline timeline = run(model);
  EXPECT_EQ(timeline.ends[0], 11);
  EXPECT_EQ(timeline.ends[1], 6);
}

TEST(Engine, DeadlockSaysWhoWaitsForWhatSinceWhenAndWhatNobodyWaitedFor) {
  Model model = sm_model();
  const Barrier a = model.add_barrier("a"), b = model.add_barrier("b"), stray = model.add_barrier("stray");
  model.add_executor(Executor{"left", {}}.busy(10).arrive(stray).wait(a, 1).arrive(b));
  model.add_executor(Executor{"right", {}}.busy(20).wait(b, 1).arrive(a));
  model.add_executor(Executor{"done", {}}.busy(99));
  const Result<Timeline> result = simulate(model);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::runtime_error);
  const std::string text = result.status().message();
  EXPECT_NE(text.find("2 executors cannot go on"), std::string::npos) << text;
  EXPECT_NE(text.find("left waits for a >= 1 (it is 0, 1 arrival missing) since cycle 10"), std::string::npos) << text;
  EXPECT_NE(text.find("right would arrive, but cannot go on either"), std::string::npos) << text;
  EXPECT_NE(text.find("right waits for b >= 1 (it is 0, 1 arrival missing) since cycle 20"), std::string::npos) << text;
  EXPECT_NE(text.find("stray got 1 arrival, but nobody waited for more than 0"), std::string::npos) << text;
  EXPECT_EQ(run(model).makespan, 99);
}

TEST(Engine, DeadlockWithNobodyLeftToArriveSaysSo) {
  Model model = sm_model();
  const Barrier full = model.add_barrier("full");
  model.add_executor(Executor{"loop", {}}.async(MEM, 5, 'L', 1, full).wait(full, 2));
  const Timeline timeline = run(model);
  ASSERT_TRUE(timeline.deadlock.has_value());
  EXPECT_EQ(timeline.deadlock->blocked[0].has, 1);
  EXPECT_NE(describe(model, *timeline.deadlock).find("nobody is left who would arrive"), std::string::npos);
}

TEST(Engine, ModelsThatNameWhatDoesNotExistAreRefused) {
  Model model = sm_model();
  model.add_executor(Executor{"loop", {}}.use(7, 1, 'a'));
  EXPECT_EQ(simulate(model).status().code(), StatusCode::invalid_value);
  model.executors[0] = Executor{"loop", {}}.wait(0, 1);
  EXPECT_FALSE(simulate(model).ok());
  model.executors[0] = Executor{"loop", {}}.busy(-1);
  EXPECT_NE(simulate(model).status().message().find("cycles = -1"), std::string::npos);
  model.executors[0] = Executor{"loop", {}}.busy(kLongestOperation + 1);
  EXPECT_FALSE(simulate(model).ok());
  model.executors.clear();
  EXPECT_EQ(simulate(model)->makespan, 0);
}

// A slow and obvious second reading of the rules: time advances one cycle at a time, no queue. Programs use one
// executor a resource and never tie on a resource, so that the order of simultaneous events cannot matter.
Cycles makespan_by_ticking(const Model& model) {
  struct State {
    std::size_t next = 0;
    Cycles until = 0;
  };
  std::vector<State> states(model.executors.size());
  std::vector<Cycles> free_at(model.resources.size(), 0), counts(model.barriers.size(), 0);
  std::vector<std::pair<Cycles, Barrier>> arrivals;
  Cycles makespan = 0;
  for (Cycles now = 0; now < 1000; ++now) {
    for (const auto& [time, barrier] : arrivals)
      if (time == now) ++counts[barrier];
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t e = 0; e < states.size(); ++e) {
        State& state = states[e];
        const std::vector<Operation>& program = model.executors[e].program;
        if (state.until > now || state.next > program.size()) continue;
        if (state.next == program.size()) {
          makespan = std::max(makespan, now);
        } else {
          const Operation& op = program[state.next];
          if (op.kind == OperationKind::wait && counts[op.barrier] < op.cycles) continue;
          if (op.kind == OperationKind::arrive) ++counts[op.barrier];
          if (op.kind == OperationKind::busy) state.until = now + op.cycles;
          if (op.kind == OperationKind::use || op.kind == OperationKind::async) {
            free_at[op.resource] = std::max(now, free_at[op.resource]) + op.cycles;
            if (op.kind == OperationKind::use) state.until = free_at[op.resource];
            if (op.kind == OperationKind::async) {
              const Cycles time = free_at[op.resource] + op.latency;
              arrivals.emplace_back(time, op.barrier);
              if (time == now) ++counts[op.barrier];
            }
          }
        }
        ++state.next;
        moved = true;
      }
    }
    const bool ended = std::all_of(states.begin(), states.end(), [&](const State& state) {
      return state.next > model.executors[static_cast<std::size_t>(&state - states.data())].program.size();
    });
    if (ended) return makespan;
  }
  return -1;  // deadlock
}

TEST(Engine, AgreesWithATickByTickReadingOfTheRulesOnRandomPrograms) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int deadlocks = 0, finished = 0;
  for (int round = 0; round < 1500; ++round) {
    Model model;
    const int executors = draw(1, 4);
    for (int e = 0; e < executors; ++e) model.add_resource(numbered("r", e));
    for (int b = 0; b < 3; ++b) model.add_barrier(numbered("b", b));
    std::vector<int> sent(3, 0);
    for (int e = 0; e < executors; ++e) {
      Executor executor{numbered("e", e), {}};
      const auto resource = static_cast<Resource>(e);
      for (int i = draw(0, 12); i > 0; --i) {
        const auto barrier = static_cast<Barrier>(draw(0, 2));
        switch (draw(0, 4)) {
          case 0:
            executor.use(resource, draw(0, 9), 'u');
            break;
          case 1:
            executor.async(resource, draw(0, 9), 'a', draw(0, 20), barrier);
            ++sent[barrier];
            break;
          case 2:
            executor.busy(draw(0, 9));
            break;
          case 3:
            executor.wait(barrier, draw(0, sent[barrier] + (draw(0, 9) == 0)));
            break;
          default:
            executor.arrive(barrier);
            ++sent[barrier];
        }
      }
      model.add_executor(std::move(executor));
    }
    const Cycles expected = makespan_by_ticking(model);
    for (const bool reverse : {false, true}) {
      const Timeline timeline = run(model, {.reverse_ties = reverse});
      if (timeline.deadlock) {
        EXPECT_EQ(expected, -1);
      } else {
        EXPECT_EQ(timeline.makespan, expected);
      }
    }
    (expected < 0 ? deadlocks : finished) += 1;
  }
  EXPECT_GT(deadlocks, 20);
  EXPECT_GT(finished, 1000);
}

}  // namespace
}  // namespace warploom::sim
