// A pool of threads that help a caller with its work and sleep otherwise.
#pragma once

namespace warploom::cpu {

/// Calls body(context) on the caller and, when they are free, on up to `threads` - 1 helpers at once; returns when all
/// of these calls have returned. The body picks its work up from shared state until none is left and must not throw, so
/// a call is complete whether helpers join or not. Several threads may call at once, and a forked child may call too.
void run_with_helpers(int threads, void (*body)(void*), void* context);

/// Processors this process may run on.
int available_processors();

}  // namespace warploom::cpu
