//! A program that counts through blocks of a segment.

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{PATIENCE, ids, value};
use idgen_testkit::{Cluster, Stop};

use crate::{create_tables, finish, run_python, server, start};

fn with_segment() -> Cluster {
    let cluster = server();
    create_tables(&mut cluster.client(), "segment_blocks.py");
    cluster
}

fn numbers(lines: &[String]) -> Vec<i64> {
    lines.iter().map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn segment_blocks_of_several_programs_are_distinct_over_a_crash() {
    let cluster = with_segment();
    let programs = [(); 3].map(|()| start(&cluster, "segment_blocks.py", &["ticket", "200000"]));
    cluster.wait_for(PATIENCE, "the programs to count", || programs.iter().all(|p| p.lines().len() > 2000));
    let unfinished = programs.iter().filter(|program| program.lines().len() < 200_000).count();
    cluster.stop(Stop::Immediate);
    cluster.start_again();
    assert!(unfinished > 0, "the crash is in the middle");
    let mut all = ids(&mut cluster.client(), "SELECT segment_next('ticket')");
    for program in programs {
        let values = numbers(&finish(program, &cluster));
        // One statement for each thousand.
        for block in values.chunks(1000) {
            assert!(block.windows(2).all(|pair| pair[1] == pair[0] + 1), "a block is in one piece");
        }
        all.extend(values);
    }
    assert_eq!(all.len(), 600_001);
    assert_distinct(all);
}

#[test]
fn segment_blocks_of_threads_and_of_a_forked_child_are_distinct() {
    let cluster = with_segment();
    cluster.execute("ALTER SYSTEM SET track_functions = 'all'");
    cluster.reload();
    // The parent forks in the middle of a block, while other threads count.
    let case = "import os, signal, sys, threading; from segment_blocks import Blocks
signal.alarm(60)
blocks = Blocks(sys.argv[1], 'ticket', 500)
def count(): sys.stdout.write(''.join(f'{value}\\n' for value in [blocks.next() for _ in range(2200)]))
threads = [threading.Thread(target=count) for _ in range(4)]
[blocks.next() for _ in range(10)]
for thread in threads: thread.start()
child = os.fork()
if child == 0:
    signal.alarm(60)
    values = [blocks.next() for _ in range(700)]
    os.write(1, ''.join(f'{value}\\n' for value in values).encode()); os._exit(0)
status = os.waitpid(child, 0)[1]
for thread in threads: thread.join()
assert status == 0; count()";
    let printed = run_python(&cluster, "segment_blocks.py", case);
    let values = numbers(&printed.lines().map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(values.len(), 5 * 2200 + 700);
    assert_distinct(values);
    // 23 blocks of the parent, which has drawn ten values more, and two of the child. A session counts when it ends.
    let mut client = cluster.client();
    let counted = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'segment_reserve'";
    let running =
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query ~ 'segment_reserve'";
    cluster.wait_for(PATIENCE, "the sessions to end", || value(&mut client, running));
    assert_eq!(value::<i64>(&mut client, counted), 23 + 2);
}
