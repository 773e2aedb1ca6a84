//! Single-user mode (`postgres --single`): one process, no background workers. The server afterwards repeats nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::lease::{acquire, assert_held};
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{execute, ids, value};
use idgen_testkit::{Builder, Cluster, Stop};

fn builder() -> Builder {
    Cluster::builder().conf("idgen.worker_id", "1").conf("log_error_verbosity", "verbose")
}

fn single_user(cluster: &Cluster, options: &[&str]) -> Command {
    let mut command = cluster.program("postgres");
    command.arg("--single").arg("-D").arg(cluster.data_dir()).args(options).arg("postgres");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn send(child: &mut Child, statements: &[&str]) {
    let input = child.stdin.as_mut().expect("a pipe");
    statements.iter().for_each(|sql| writeln!(input, "{sql}").expect("the process reads"));
}

/// Runs statements on a stopped server, and returns the results and the log.
fn run(cluster: &Cluster, options: &[&str], statements: &[&str]) -> String {
    let mut child = single_user(cluster, options).spawn().expect("postgres can be started");
    send(&mut child, statements);
    let output = child.wait_with_output().expect("a child can be waited for");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{}\n{text}", output.status);
    text
}

/// The value in a line such as ` 1: snowflake_next = "17"  (typeid = 20, ...)`.
fn value_in(line: &str, column: &str) -> Option<i64> {
    line.split_once(&format!(": {column} = \""))?.1.split('"').next()?.parse().ok()
}

fn values(output: &str, column: &str) -> Vec<i64> {
    output.lines().filter_map(|line| value_in(line, column)).collect()
}

fn errors(output: &str) -> Vec<&str> {
    output.lines().filter_map(|line| Some(line.split_once("ERROR:  ")?.1)).collect()
}

const DRAW: &str = "SELECT snowflake_next()";

#[test]
fn ids_and_tokens_of_single_user_mode_are_not_repeated_smoke() {
    let (cluster, [mut client]) = builder().fake_clock().start_with_clients();
    let mut seen = vec![value::<i64>(&mut client, DRAW)];
    let held = acquire(&mut client, "'held', ttl => '1 day'").token;
    drop(client);
    cluster.stop(Stop::Immediate);

    let output = run(
        &cluster,
        &[],
        &[
            "SELECT snowflake_next_many(3) AS id",
            "SELECT token FROM lease_try_acquire('held')",
            "SELECT token FROM lease_acquire('new', ttl => '1 day')",
            "SELECT lock_acquire('a'), lock_acquire('b')",
            "SELECT count(*) AS locks, count(name) AS named FROM idgen.locks",
            "SELECT snowflake_observe(snowflake_next() + (1::bigint << 32)) AS observed, snowflake_next() AS id",
        ],
    );
    assert_eq!(errors(&output), [""; 0], "{output}");
    let single = values(&output, "id");
    assert_eq!((single.len(), values(&output, "locks"), values(&output, "named")), (4, vec![2], vec![2]), "{output}");
    seen.extend(single);
    let [new] = values(&output, "token")[..] else { panic!("one of two leases is free: {output}") };
    assert!(new > held, "{new} after {held}");

    // Only what single-user mode has written says that the ids are ahead of this clock.
    cluster.clock().set_offset_ms(-3_600_000);
    cluster.start_again();
    let mut client = cluster.client();
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(3)"));
    assert_increasing(&seen);
    ["held", "new"].into_iter().for_each(|name| assert_held(&mut client, name));
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.locks"), 0);
}

#[test]
fn ids_of_a_killed_single_user_process_are_not_repeated() {
    let cluster = builder().fake_clock().start_with_extension();
    cluster.stop(Stop::Fast);
    let mut child = single_user(&cluster, &[]).spawn().expect("postgres can be started");
    send(&mut child, &["SELECT snowflake_next_many(1000)"]);
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("UTF-8"));
    let mut seen: Vec<i64> = lines.filter_map(|line| value_in(&line, "snowflake_next_many")).take(1000).collect();
    assert_eq!(seen.len(), 1000, "the process ended");
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");

    cluster.clock().set_offset_ms(-3_600_000);
    cluster.start_again();
    seen.extend(ids(&mut cluster.client(), "SELECT snowflake_next_many(3)"));
    assert_increasing(&seen);
}

/// Values come from the refill worker, which single-user mode does not have. A transaction counts the values of a segment
/// that it creates by itself.
#[test]
fn single_user_mode_draws_only_from_segments_of_its_own_transaction() {
    let (cluster, [mut client]) = builder().start_with_clients();
    create(&mut client, "t", ", step => 20");
    (1..=30).for_each(|id| assert_eq!(next(&mut client, "t"), id));
    drop(client);
    cluster.stop(Stop::Fast);

    let output = run(
        &cluster,
        &[],
        &[
            "SELECT segment_next('t')",
            "SELECT segment_alter('t', max_id => 500)",
            "SELECT max_id FROM idgen.segment",
            "BEGIN",
            "SELECT segment_create('own')",
            "SELECT segment_next_many('own', 3) AS own",
            "COMMIT",
        ],
    );
    assert_eq!(errors(&output), ["53400: could not start the refill worker"]);
    assert!(output.contains("DETAIL:  Single-user mode has no background workers."), "{output}");
    assert!(output.contains("HINT:  Start the server, then repeat the call."), "{output}");
    assert_eq!((values(&output, "max_id"), values(&output, "own")), (vec![500], vec![1, 2, 3]), "{output}");

    cluster.start_again();
    let mut client = cluster.client();
    assert_eq!([next(&mut client, "t"), next(&mut client, "own")], [501, 4]);
}

#[test]
fn extension_is_created_and_dropped_in_single_user_mode() {
    let cluster = builder().start();
    cluster.stop(Stop::Fast);
    let output = run(
        &cluster,
        &[],
        &["CREATE EXTENSION idgen", DRAW, "DROP EXTENSION idgen", DRAW, "CREATE EXTENSION idgen", DRAW],
    );
    let [refused] = errors(&output)[..] else { panic!("one error: {output}") };
    assert!(refused.starts_with("42883: function snowflake_next() does not exist"), "{refused}");
    let mut seen = values(&output, "snowflake_next");
    assert_eq!(seen.len(), 2, "{output}");

    // As a rescue does that leaves out all libraries: reading works, drawing does not.
    let output =
        run(&cluster, &["-c", "shared_preload_libraries="], &[DRAW, "SELECT sequence AS n FROM snowflake_parts(4097)"]);
    let [refused] = errors(&output)[..] else { panic!("one error: {output}") };
    assert!(refused.starts_with("55000: "), "{refused}");
    assert_eq!(values(&output, "n"), [1]);
    cluster.start_again();
    let mut client = cluster.client();
    execute(&mut client, "SELECT lock_acquire('a')");
    seen.push(value(&mut client, DRAW));
    assert_increasing(&seen);
}
