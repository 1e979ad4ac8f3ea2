use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::WATCHDOG;
use crate::l2::{CompletionQueue, Completions, TaskId};

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// Waits for the signal.
fn wait(fd: impl AsFd) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(WATCHDOG).unwrap();
    assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1, "no signal");
}

#[test]
fn a_result_is_given_once_and_only_after_it_is_there() {
    let queue = CompletionQueue::new().unwrap();
    let ticket = queue.ticket("unanswered");
    let task = ticket.task();
    assert_eq!((queue.take(task), queue.pending()), (None, 1));
    assert!(!is_readable(&queue) && !queue.consume());
    ticket.complete("done");
    assert!(is_readable(&queue));
    assert_eq!(queue.pending(), 0);
    assert!(queue.consume());
    assert!(!is_readable(&queue) && !queue.consume());
    assert_eq!(queue.take(task), Some("done"));
    assert_eq!(queue.take(task), None);
    assert!(queue.take_all().is_empty());
}

#[test]
fn a_ticket_that_is_dropped_is_answered() {
    let queue = CompletionQueue::new().unwrap();
    let task = queue.ticket("unanswered").task();
    assert!(is_readable(&queue));
    assert_eq!(queue.take(task), Some("unanswered"));
}

#[test]
fn a_ticket_outlives_its_queue() {
    let queue = CompletionQueue::new().unwrap();
    let ticket = queue.ticket(());
    drop(queue);
    ticket.complete(());
}

#[test]
fn results_come_in_the_order_in_which_tasks_finished() {
    let queue = CompletionQueue::new().unwrap();
    let [a, b, c] = [0; 3].map(|_| queue.ticket("unanswered"));
    let (first, second, third) = (b.task(), c.task(), a.task());
    b.complete("b");
    c.complete("c");
    a.complete("a");
    // Taken out of turn, it is not given again.
    assert_eq!(queue.take(second), Some("c"));
    assert_eq!(queue.take_all(), [(first, "b"), (third, "a")]);
    assert!(queue.take_all().is_empty());
}

#[test]
fn many_results_taken_one_by_one_leave_nothing_behind() {
    let queue = CompletionQueue::new().unwrap();
    for number in 0..10_000 {
        let ticket = queue.ticket(0);
        let task = ticket.task();
        ticket.complete(number);
        assert_eq!(queue.take(task), Some(number));
    }
    let last = queue.ticket(7).task();
    assert_eq!(queue.take_all(), [(last, 7)]);
}

#[test]
fn an_unknown_task_has_no_result() {
    let queue = CompletionQueue::<()>::new().unwrap();
    assert_eq!(queue.take(TaskId(77)), None);
}

#[test]
fn who_waits_for_the_signal_and_asks_once_misses_nothing() {
    const THREADS: usize = 8;
    const TASKS: usize = 2_000;
    let queue = CompletionQueue::new().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..TASKS {
                    let ticket = queue.ticket(usize::MAX);
                    if number % 3 == 0 {
                        drop(ticket);
                    } else {
                        ticket.complete(thread);
                    }
                }
            });
        }
        let begun = Instant::now();
        let mut seen = HashSet::new();
        let mut unanswered = 0;
        while seen.len() < THREADS * TASKS {
            assert!(begun.elapsed() < WATCHDOG, "{} results", seen.len());
            wait(&queue);
            queue.consume();
            for (task, result) in queue.take_all() {
                assert!(seen.insert(task), "{task:?} was given twice");
                unanswered += usize::from(result == usize::MAX);
            }
        }
        assert_eq!(unanswered, THREADS * TASKS.div_ceil(3));
    });
    assert_eq!(queue.pending(), 0);
}

#[test]
fn three_queues_have_three_descriptors_and_one_numbering() {
    let three = Completions::new().unwrap();
    let fds = three.event_fds();
    let fds = [fds.store, fds.lookup, fds.load].map(|fd| fd.as_raw_fd());
    assert_eq!(HashSet::from(fds).len(), 3);
    let store = three.stores.ticket(crate::l2::StoreResult::stored(0));
    let lookup = three.lookups.ticket(crate::l2::LookupResult::new([]));
    let load = three.loads.ticket(crate::l2::LoadResult::default());
    let tasks = [store.task(), lookup.task(), load.task()];
    assert_eq!(HashSet::from(tasks).len(), 3);
    assert_eq!(three.pending(), 3);
    drop(lookup);
    assert_eq!(three.pending(), 2);
    assert!(is_readable(three.event_fds().lookup));
    assert!(!is_readable(three.event_fds().store) && !is_readable(three.event_fds().load));
}
