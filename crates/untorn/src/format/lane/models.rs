//! Every interleaving of writers and of threads that take every lane.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model, relax};

/// Lanes, and for each a counter that only its holder may touch.
struct Area {
    lanes: Lanes,
    counters: [AtomicU64; 2],
}

impl Area {
    fn new(lanes: u32, slots: u32) -> Arc<Self> {
        let counters = [(); 2].map(|()| AtomicU64::new(0));
        Arc::new(Area { lanes: Lanes::new(0, lanes, slots).unwrap(), counters })
    }

    /// No atomic addition: a holder that is not alone loses a step, or sees an old one.
    fn step(&self, lane: &Lane<'_>) {
        let counter = &self.counters[lane.index];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn write(&self) {
        self.step(&self.lanes.acquire(relax));
    }

    /// Returns how many lanes there were.
    fn collect(&self) -> u64 {
        let all = self.lanes.acquire_all(relax);
        all.iter().for_each(|lane| self.step(lane));
        all.len() as u64
    }

    /// What a commit leaves in a lane once its record is stored.
    fn append(&self, lane: &Lane<'_>, page: u64) {
        let head = lane.head();
        self.lanes.name(self.lanes.offset(lane.position()), [Some(page), None]);
        lane.state.head.store(head + 1, Ordering::Release);
        lane.finish(page);
    }

    fn total(&self) -> u64 {
        self.counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

fn spawn<T: 'static>(area: &Arc<Area>, body: fn(&Area) -> T) -> thread::JoinHandle<T> {
    let area = Arc::clone(area);
    thread::spawn(move || body(&area))
}

#[test]
fn writers_exclude_each_other() {
    model("lanes: two writers, one lane", None, || {
        let area = Area::new(1, 1);
        let other = spawn(&area, Area::write);
        area.write();
        other.join().unwrap();
        assert_eq!(area.total(), 2);
    });
}

#[test]
fn two_collectors_and_a_writer_all_get_through() {
    for (lanes, preemptions) in [(1, 2), (2, 1)] {
        let name = format!("lanes: two collectors and a writer, lanes to take: {lanes}");
        model(&name, Some(preemptions), move || {
            let area = Area::new(lanes, 1);
            let (other, writer) = (spawn(&area, Area::collect), spawn(&area, Area::write));
            let taken = area.collect() + other.join().unwrap();
            writer.join().unwrap();
            assert_eq!(area.total(), taken + 1);
            // Nobody is left who would keep writers out.
            assert!(area.lanes.try_acquire().is_some());
        });
    }
}

#[test]
fn a_try_acquire_holds_a_lane_alone_or_not_at_all() {
    model("lanes: a collector and one who only tries", None, || {
        let area = Area::new(2, 1);
        let other = spawn(&area, Area::collect);
        let held = area.lanes.try_acquire().map(|lane| area.step(&lane)).is_some();
        let taken = other.join().unwrap();
        assert_eq!(area.total(), taken + u64::from(held));
    });
}

#[test]
fn a_collector_sees_what_writers_appended() {
    model("lanes: a collector sees what a writer appended", Some(4), || {
        let area = Area::new(1, 2);
        let other = spawn(&area, |area| {
            for page in 1..=2 {
                area.append(&area.lanes.acquire(relax), page);
            }
        });
        let (head, last) = {
            let lanes = area.lanes.acquire_all(relax);
            (lanes[0].head(), lanes[0].last())
        };
        assert_eq!(head, last, "half of an append");
        // The writer may be going on; what it appended before the collection stays.
        let pages: Vec<u64> = area.lanes.live_pages(0, head).collect();
        assert_eq!(pages, [1, 2][..head as usize]);
        other.join().unwrap();
        assert_eq!(area.lanes.last(), 2);
    });
}

#[test]
fn a_line_is_used_again_only_after_the_cut() {
    model("lanes: a line is used again only after the cut", Some(4), || {
        let area = Area::new(1, 1);
        area.append(&area.lanes.acquire(relax), 1);
        let other = spawn(&area, |area| {
            let lane = area.lanes.acquire(relax);
            if area.lanes.free(&lane) > 0 {
                area.append(&lane, 2);
            }
        });
        let heads: Vec<u64> = area.lanes.acquire_all(relax).iter().map(Lane::head).collect();
        let pages: Vec<u64> = area.lanes.live_pages(0, heads[0]).collect();
        assert_eq!(pages, [1], "a live line was written over");
        area.lanes.retire(&heads);
        other.join().unwrap();
    });
}
