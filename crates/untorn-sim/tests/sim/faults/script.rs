//! The script of operations.

use untorn_sim::script::{Op, Writes};

/// The operations that are worth failing in: each one, on fresh and on written pages, within an epoch and across
/// commits.
pub(crate) fn script() -> Vec<Op> {
    let mut some = Writes::default();
    let wide: Vec<(u64, u64)> = (0..10).map(|page| (page * 4096 + 40, 90)).collect();
    vec![
        Op::Create { len: 2 * 4096 + 1300 },
        some.write(64, 64),
        some.write(4096, 128),
        Op::Sync,
        some.write(30, 300),
        some.write(50, 100),
        some.transaction(&[(100, 60), (4000, 500), (9400, 92)]),
        some.transaction(&[(90, 200), (4100, 130), (9410, 70)]),
        Op::DEPLOY_ALL,
        Op::Sync,
        some.write(0, 4096),
        some.write(10, 4000),
        some.eager(50, 100),
        Op::Reclaim,
        Op::Sync,
        Op::DEPLOY_ALL,
        Op::Sync,
        Op::Reclaim,
        some.write(4140, 40),
        Op::Resize { len: 4150 },
        Op::Resize { len: 3 * 4096 + 100 },
        some.write(4100, 200),
        Op::Close,
        some.write(1000, 700),
        Op::Drop,
        Op::Resize { len: 10 * 4096 + 77 },
        some.transaction(&wide),
        some.transaction(&wide),
        Op::Sync,
        Op::DEPLOY_ALL,
        some.transaction(&wide),
        Op::Resize { len: 2 * 4096 + 10 },
        some.write(4000, 4000),
        Op::Sync,
        Op::Settle,
        some.write(70, 90),
        Op::Sync,
        Op::Close,
    ]
}
