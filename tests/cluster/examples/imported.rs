//! What programs do that import an example: call it from a handler of a signal, fork, close it, wait in vain.

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Example, Proxy};

use crate::{create_tables, run_python, server};

/// A server for a program, with what its header defines.
fn server_of(program: &str) -> Cluster {
    let cluster = server();
    create_tables(&mut cluster.client(), program);
    cluster
}

/// Draws while a handler of a signal does so too, a thousand times a second. Prints all that was made.
const INTERRUPTED: &str = "
import signal, sys
made, refused = [], 0

def handler(*_):
    global refused
    try:
        made.append(source.next())
    except RuntimeError as error:
        assert 'in the middle of another call' in str(error), error
        refused += 1

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while refused < 100 and len(made) < 500000:
    made.append(source.next())
signal.setitimer(signal.ITIMER_REAL, 0)
assert refused, 'no call was interrupted'
print(*made, sep='\\n')
";

fn interrupted(program: &str, source: &str) {
    let printed = run_python(&server_of(program), program, &format!("import sys\n{source}\n{INTERRUPTED}"));
    assert_distinct(printed.lines().map(|line| line.parse::<i64>().expect("a number")).collect());
}

#[test]
fn ids_made_in_a_handler_of_a_signal_are_distinct_or_refused() {
    interrupted("worker_ids.py", "import worker_ids; source = worker_ids.WorkerIds(sys.argv[1], 'shop-ids', 'a', 30)");
}

#[test]
fn block_values_drawn_in_a_handler_of_a_signal_are_distinct_or_refused() {
    interrupted("segment_blocks.py", "import segment_blocks; source = segment_blocks.Blocks(sys.argv[1], 'ticket')");
}

#[test]
fn child_of_a_leader_does_not_lead() {
    let case = "
import os, sys, leader, time
candidate = leader.Candidate(sys.argv[1], 'scheduler', 'a', 600)
while not candidate.leads():
    time.sleep(0.01)
asked, told = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    assert candidate.leads() is None
    candidate.resign()
    os.read(asked[0], 1)
    os._exit(0 if candidate.leads() is None else 1)
assert candidate.leads()
candidate.resign()
# The term would have lasted for ten minutes.
os.write(asked[1], b'x')
assert os.waitpid(child, 0)[1] == 0";
    run_python(&server_of("leader.py"), "leader.py", case);
}

#[test]
fn closed_source_of_ids_leaves_no_connection_and_no_object() {
    let cluster = server_of("worker_ids.py");
    let case = "
import gc, os, sys, weakref, worker_ids
ids = worker_ids.WorkerIds(sys.argv[1], 'shop-ids', 'a', 30)
ids.next()
ids.close()
assert ids.db is None
for process in range(2):
    try:
        ids.next()
        sys.exit('an id after close()')
    except RuntimeError as error:
        assert str(error) == 'closed', error
    # A child of it is closed too.
    if process == 0 and (child := os.fork()):
        break
else:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
weak = weakref.ref(ids)
del ids
gc.collect()
assert weak() is None
assert os.fork() or os._exit(0) is None";
    run_python(&cluster, "worker_ids.py", case);
    let held = "SELECT count(*) FROM idgen.workers WHERE state = 'held'";
    assert_eq!(value::<i64>(&mut cluster.client(), held), 0, "the worker id is released");
}

#[test]
fn wait_for_an_id_ends_after_the_timeout() {
    let cluster = server_of("worker_ids.py");
    let mut locker = cluster.client();
    execute(&mut locker, "BEGIN; LOCK TABLE idgen.worker_pool");
    let case = "
import sys, worker_ids
ids = worker_ids.WorkerIds(sys.argv[1], 'shop-ids', 'a', 600)
try:
    ids.next(timeout=0.2)
    sys.exit('an id without a lease')
except TimeoutError as error:
    assert str(error) == 'there is no worker lease yet', error";
    run_python(&cluster, "worker_ids.py", case);
}

/// Where the text of a time names its zone "IST", which is also that of another one.
#[test]
fn worker_id_is_renewed_in_any_style_of_dates() {
    let cluster = server_of("worker_ids.py");
    cluster.execute(
        "ALTER DATABASE postgres SET datestyle = 'SQL, DMY'; ALTER DATABASE postgres SET timezone = 'Asia/Kolkata'",
    );
    let case = "
import sys, time, worker_ids
ids = worker_ids.WorkerIds(sys.argv[1], 'shop-ids', 'a', 3)
ids.next(timeout=30)
token, told = ids.token, ids.told
while ids.told == told:
    time.sleep(0.01)
assert ids.token == token, 'another worker id'";
    run_python(&cluster, "worker_ids.py", case);
}

#[test]
fn clients_keep_the_options_of_the_connection_string() {
    for program in ["python/worker_ids.py", "java/WorkerIds.java"] {
        let cluster = server_of("worker_ids.py");
        let proxy = Proxy::on_tcp(&cluster);
        let address = if program.ends_with(".py") {
            format!("{} options='-c log_statement=all'", proxy.conninfo())
        } else {
            let (host, port) = (proxy.host(), proxy.port());
            format!("jdbc:postgresql://{host}:{port}/postgres?user=postgres&options=-c%20log_statement=all")
        };
        let mut command = Example::command(&cluster, program);
        let mut example = Example::start(&cluster, command.args([&address, "shop-ids", "a", "30", "10"]));
        let (status, errors) = example.wait(&cluster);
        assert!(status.success(), "{errors}");
        assert!(cluster.log().contains("worker_confirm"), "{program} has dropped the options");
    }
}

#[test]
fn refused_client_tries_less_and_less_often() {
    let cluster = server_of("worker_ids.py");
    cluster.execute("CREATE ROLE locked NOLOGIN");
    let case = "
import sys, time, worker_ids
ids = worker_ids.WorkerIds(sys.argv[1].replace(\"'postgres'\", \"'locked'\"), 'shop-ids', 'a', 0.3)
errors, times = [None], []
while len(errors) < 7:
    try:
        ids.next(0)
    except (RuntimeError, TimeoutError):
        time.sleep(0.001)
    if ids.error is not errors[-1]:
        errors.append(ids.error)
        times.append(time.monotonic())
assert 'not permitted to log in' in str(errors[1]), errors
# At least half of 0.1, 0.2, 0.4, 0.8 and 1.6 s.
assert times[5] - times[0] > 1.5, times";
    run_python(&cluster, "worker_ids.py", case);
}

#[test]
fn segment_blocks_of_threads_and_of_a_forked_child_are_distinct() {
    let cluster = server_of("segment_blocks.py");
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
    let values: Vec<i64> = printed.lines().map(|line| line.parse().expect("a number")).collect();
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
