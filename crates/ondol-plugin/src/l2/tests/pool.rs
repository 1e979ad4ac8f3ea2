use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::WATCHDOG;
use crate::l2::{CompletionQueue, WorkerPool};

/// A job that says that it runs, and then waits until its sender is dropped or told.
fn waiting_job(pool: &WorkerPool) -> Sender<()> {
    let (begun, is_begun) = channel();
    let (go, wait) = channel::<()>();
    assert!(pool.run(move || {
        begun.send(()).unwrap();
        let _ = wait.recv();
    }));
    is_begun.recv_timeout(WATCHDOG).unwrap();
    go
}

#[test]
fn every_job_runs_on_a_thread_of_that_name() {
    let pool = WorkerPool::new("crew", 3).unwrap();
    let (sender, results) = channel();
    for number in 0..100 {
        let sender = sender.clone();
        assert!(pool.run(move || {
            let name = std::thread::current().name().map(str::to_owned);
            sender.send((number, name)).unwrap();
        }));
    }
    let mut seen: Vec<_> = (0..100)
        .map(|_| results.recv_timeout(WATCHDOG).unwrap())
        .collect();
    seen.sort();
    for (number, (job, name)) in seen.into_iter().enumerate() {
        assert_eq!((job, name.as_deref()), (number, Some("crew")));
    }
}

#[test]
fn a_pool_of_no_threads_has_one() {
    let pool = WorkerPool::new("crew", 0).unwrap();
    drop(waiting_job(&pool));
}

#[test]
fn a_job_that_panics_answers_its_ticket_and_its_thread_is_replaced() {
    let pool = WorkerPool::new("crew", 1).unwrap();
    let queue = CompletionQueue::new().unwrap();
    for _ in 0..5 {
        let ticket = queue.ticket("unanswered");
        assert!(pool.run(move || {
            let _ticket = ticket;
            panic!("as it should");
        }));
    }
    // It runs only if there is a thread again.
    drop(waiting_job(&pool));
    let results = queue.take_all();
    assert_eq!(results.len(), 5);
    assert!(results.iter().all(|(_, result)| *result == "unanswered"));
    assert_eq!(pool.close(WATCHDOG), 0);
}

#[test]
fn closing_drops_what_has_not_begun_and_answers_it() {
    let pool = WorkerPool::new("crew", 1).unwrap();
    let queue = CompletionQueue::new().unwrap();
    let go = waiting_job(&pool);
    let ticket = queue.ticket("unanswered");
    let task = ticket.task();
    assert!(pool.run(move || ticket.complete("it ran")));
    // The running job goes on beyond the deadline.
    assert_eq!(pool.close(Duration::ZERO), 1);
    assert_eq!(queue.take(task), Some("unanswered"));
    let late = queue.ticket("unanswered");
    let late_task = late.task();
    assert!(!pool.run(move || late.complete("it ran")));
    assert_eq!(queue.take(late_task), Some("unanswered"));
    drop(go);
    assert_eq!(pool.close(WATCHDOG), 0);
    assert_eq!(pool.close(Duration::MAX), 0);
}

#[test]
fn a_job_that_panics_while_the_pool_closes_is_waited_for() {
    let pool = WorkerPool::new("crew", 1).unwrap();
    let (begun, is_begun) = channel();
    let (go, wait) = channel::<()>();
    pool.run(move || {
        begun.send(()).unwrap();
        let _ = wait.recv();
        panic!("as it should");
    });
    is_begun.recv_timeout(WATCHDOG).unwrap();
    assert_eq!(pool.close(Duration::ZERO), 1);
    drop(go);
    assert_eq!(pool.close(WATCHDOG), 0);
}

#[test]
fn threads_end_when_the_last_owner_is_gone() {
    /// What a thread holds while it lives.
    struct Held(Arc<AtomicUsize>, Sender<()>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            let _ = self.1.send(());
        }
    }
    thread_local! {
        static HELD: std::cell::RefCell<Option<Held>> = const { std::cell::RefCell::new(None) };
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let (sender, is_ended) = channel();
    let pool = WorkerPool::new("crew", 1).unwrap();
    let held = Held(Arc::clone(&ended), sender);
    pool.run(move || HELD.set(Some(held)));
    drop(waiting_job(&pool));
    let clone = pool.clone();
    drop(pool);
    drop(waiting_job(&clone));
    assert_eq!(ended.load(Ordering::Relaxed), 0);
    drop(clone);
    is_ended.recv_timeout(WATCHDOG).unwrap();
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}
