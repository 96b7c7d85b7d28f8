//! Threads that wait for each other after every call.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A barrier that threads may leave, and at which they agree to end.
pub(super) struct InStep {
    state: Mutex<State>,
    turned: Condvar,
}

struct State {
    members: usize,
    arrived: usize,
    round: u64,
    /// A thread that arrived wants to end.
    ends: bool,
    /// All threads ended with the last round.
    is_over: bool,
}

/// A thread of a barrier, which it leaves when this is dropped.
pub(super) struct Member<'a>(&'a InStep);

impl InStep {
    /// A barrier for `threads` threads, each of which must become a [`member`](Self::member).
    pub(super) fn of(members: usize) -> InStep {
        InStep {
            state: Mutex::new(State {
                members,
                arrived: 0,
                round: 0,
                ends: false,
                is_over: false,
            }),
            turned: Condvar::new(),
        }
    }

    pub(super) fn member(&self) -> Member<'_> {
        Member(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, state: &mut State) {
        if state.arrived == state.members {
            state.arrived = 0;
            state.round += 1;
            state.is_over = state.ends;
            self.turned.notify_all();
        }
    }
}

impl Member<'_> {
    /// Waits for the others. Returns true if any thread wants to end; the answer is the same for
    /// all.
    pub(super) fn meet(&self, ends: bool) -> bool {
        let mut state = self.0.state();
        let round = state.round;
        state.ends |= ends;
        state.arrived += 1;
        self.0.turn(&mut state);
        while state.round == round {
            state = self
                .0
                .turned
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.is_over
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.members -= 1;
        self.0.turn(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn all_threads_end_in_the_same_round() {
        let step = InStep::of(4);
        let rounds: Vec<u32> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let member = step.member();
                    scope.spawn(move || {
                        let mut round = 0;
                        while !member.meet(round == 100 + thread) {
                            round += 1;
                        }
                        round
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(rounds, [100; 4]);
    }

    #[test]
    fn a_thread_that_leaves_does_not_block_the_others() {
        let step = InStep::of(3);
        thread::scope(|scope| {
            for last in [0, 3, 50] {
                let member = step.member();
                scope.spawn(move || {
                    for _ in 0..last {
                        assert!(!member.meet(false));
                    }
                });
            }
        });
        assert_eq!(step.state().members, 0);
    }
}
