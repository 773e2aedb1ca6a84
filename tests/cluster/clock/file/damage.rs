//! A file that was lost, damaged, swapped or made unreadable while the server was down: the server starts, ids can be
//! read, and none is made that could have been made before.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use idgen_core::clock::record::RECORD;
use idgen_testkit::high_water::{bytes, directory, file, mark_ms, newest_record};
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{PATIENCE, check, ids, value};
use idgen_testkit::{Builder, Cluster, Stop};

use super::records::{OTHER, flip_both, truncate};
use super::{assert_after, assert_decoding_works, assert_no_generation, clock_ms, draw_until, next, start, time_ms};

/// A server that has issued ids and is stopped, with a file whose both records were written. Returns the ids.
fn stopped(builder: Builder) -> (Cluster, Vec<i64>) {
    let cluster = start(builder.conf("idgen.max_drift", "0").conf("idgen.clock_window", "100ms"));
    let mut client = cluster.client();
    let mut seen = vec![next(&mut client)];
    cluster.wait_for(PATIENCE, "a third record", || {
        seen.extend(ids(&mut client, "SELECT snowflake_next() FROM generate_series(1, 20)"));
        newest_record(&cluster).record.turn >= 3
    });
    assert_increasing(&seen);
    cluster.stop(Stop::Fast);
    (cluster, seen)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Puts something into the directory as the server's own.
fn give_to_server(cluster: &Cluster, path: &Path) {
    let data = fs::metadata(cluster.data_dir()).unwrap();
    chown(path, Some(data.uid()), Some(data.gid())).unwrap();
}

/// One way to spoil the file, and what is said then.
struct Damage {
    name: &'static str,
    code: &'static str,
    words: &'static str,
    spoil: fn(&Cluster),
    /// Mends it; the bytes are those of the file as it was.
    mend: fn(&Cluster, &[u8]),
}

/// Spoils the file of the stopped server, asserts that it starts and refuses to generate, mends the file under the
/// running server, and asserts that it goes on; then the next.
fn refuses_until_mended(cases: &[Damage]) {
    let (cluster, mut seen) = stopped(Cluster::builder());
    for (n, case) in cases.iter().enumerate() {
        // Shown when an assertion fails.
        println!("{}", case.name);
        let whole = bytes(&cluster);
        (case.spoil)(&cluster);
        cluster.start_again();
        let refuses = || {
            let mut client = cluster.client();
            for _ in 0..2 {
                let error = assert_no_generation(&mut client, case.code);
                assert!(error.message().contains(case.words), "{error:?}");
                assert_decoding_works(&mut client);
                assert_eq!(value::<i64>(&mut client, "SELECT count(last_id) FROM idgen.stat_snowflake"), 0);
            }
            client
        };
        let mut client = refuses();
        if n == 0 {
            // Neither a clean shutdown nor a crash blesses what is there.
            cluster.restart();
            refuses();
            cluster.kill9_postmaster();
            cluster.start_again();
            client = refuses();
        }
        (case.mend)(&cluster, &whole);
        let after = [next(&mut client), next(&mut cluster.client())];
        assert_after(&seen, &after);
        seen.extend(after);
        let (ok, message) = check(&mut client, "mark");
        assert!(ok, "{message}");
        drop(client);
        cluster.stop(if n == 0 { Stop::Immediate } else { Stop::Fast });
    }
    cluster.start_again();
    assert_after(&seen, &ids(&mut cluster.client(), "SELECT snowflake_next() FROM generate_series(1, 100)"));
}

fn write_back(cluster: &Cluster, whole: &[u8]) {
    fs::write(file(cluster), whole).unwrap();
    give_to_server(cluster, &file(cluster));
}

fn aside(cluster: &Cluster) -> PathBuf {
    cluster.data_dir().join("aside")
}

/// Puts the directory back that was moved aside, in the place of what stands for it.
fn move_back(cluster: &Cluster, _: &[u8]) {
    fs::remove_file(directory(cluster)).unwrap();
    fs::rename(aside(cluster), directory(cluster)).unwrap();
}

#[test]
fn a_file_that_is_lost_or_damaged() {
    let damaged = |name, spoil| Damage { name, code: "XX001", words: "no record is whole", spoil, mend: write_back };
    refuses_until_mended(&[
        Damage {
            name: "deleted",
            code: "58P01",
            words: "missing",
            spoil: |cluster| fs::remove_file(file(cluster)).unwrap(),
            mend: write_back,
        },
        damaged("empty", |cluster| truncate(cluster, 0)),
        damaged("cut within the first record", |cluster| truncate(cluster, 100)),
        damaged("a bit of each copy of both records", |cluster| {
            flip_both(cluster, 30);
            flip_both(cluster, OTHER + RECORD - 1);
        }),
        damaged("longer, and nothing but zeros", |cluster| fs::write(file(cluster), [0; 20_000]).unwrap()),
    ]);
}

#[test]
fn something_else_in_the_place_of_the_file() {
    refuses_until_mended(&[
        Damage {
            name: "a directory for the file",
            code: "58030",
            words: "directory",
            spoil: |cluster| {
                fs::remove_file(file(cluster)).unwrap();
                fs::create_dir(file(cluster)).unwrap();
                give_to_server(cluster, &file(cluster));
            },
            mend: |cluster, whole| {
                fs::remove_dir(file(cluster)).unwrap();
                write_back(cluster, whole);
            },
        },
        Damage {
            name: "a file for the directory",
            code: "58030",
            words: "Not a directory",
            spoil: |cluster| {
                fs::rename(directory(cluster), aside(cluster)).unwrap();
                fs::write(directory(cluster), "").unwrap();
                give_to_server(cluster, &directory(cluster));
            },
            mend: move_back,
        },
        Damage {
            // Such as one to a file system that is not mounted: it must not look like a first start.
            name: "a link that leads nowhere for the directory",
            code: "58030",
            words: "",
            spoil: |cluster| {
                fs::rename(directory(cluster), aside(cluster)).unwrap();
                symlink(cluster.data_dir().join("elsewhere"), directory(cluster)).unwrap();
            },
            mend: move_back,
        },
    ]);
}

#[test]
fn a_file_that_the_server_may_not_use() {
    let denied = |name, spoil, mend| Damage { name, code: "58030", words: "Permission denied", spoil, mend };
    refuses_until_mended(&[
        denied(
            "a directory that cannot be entered",
            |cluster| set_mode(&directory(cluster), 0),
            |cluster, _| set_mode(&directory(cluster), 0o700),
        ),
        denied(
            "a file that cannot be read",
            |cluster| set_mode(&file(cluster), 0),
            |cluster, _| set_mode(&file(cluster), 0o600),
        ),
        denied(
            "a file that cannot be written",
            |cluster| set_mode(&file(cluster), 0o400),
            |cluster, _| set_mode(&file(cluster), 0o600),
        ),
    ]);
}

/// Only the file is written: its directory need not be writable.
#[test]
fn a_directory_that_cannot_be_written() {
    let (cluster, mut seen) = stopped(Cluster::builder());
    set_mode(&directory(&cluster), 0o500);
    cluster.start_again();
    let mut client = cluster.client();
    let until_ms = clock_ms(&mut client) + 300;
    seen.extend(draw_until(&cluster, &mut client, until_ms));
    assert_increasing(&seen);
    set_mode(&directory(&cluster), 0o700);
}

#[test]
fn the_file_of_another_server() {
    let other = start(Cluster::builder().new_system_identifier());
    next(&mut other.client());
    let theirs = bytes(&other);
    let identifier = newest_record(&other).record.system_identifier;
    drop(other);
    let (cluster, seen) = stopped(Cluster::builder());
    let whole = bytes(&cluster);
    assert_ne!(newest_record(&cluster).record.system_identifier, identifier);
    fs::write(file(&cluster), &theirs).unwrap();
    cluster.start_again();
    for _ in 0..2 {
        let mut client = cluster.client();
        let error = assert_no_generation(&mut client, "XX001");
        assert!(error.message().contains("another server"), "{error:?}");
        // So that a DBA can tell where it came from.
        assert!(error.detail().is_some_and(|detail| detail.contains(&identifier.to_string())), "{error:?}");
        assert_decoding_works(&mut client);
        drop(client);
        cluster.restart();
    }
    assert_eq!(bytes(&cluster), theirs, "the other server's file is as it was");
    let mut client = cluster.client();
    assert_no_generation(&mut client, "XX001");
    write_back(&cluster, &whole);
    assert_after(&seen, &[next(&mut client)]);
}

/// What the HINT says when there is nothing to bring back.
#[test]
fn the_way_out_is_to_remove_the_directory() {
    let (cluster, seen) = stopped(Cluster::builder());
    truncate(&cluster, 0);
    cluster.start_again();
    let mut client = cluster.client();
    let error = assert_no_generation(&mut client, "XX001");
    assert!(error.hint().unwrap().contains("remove the directory \"idgen\""), "{error:?}");
    fs::remove_dir_all(directory(&cluster)).unwrap();
    let told = |cluster: &Cluster| cluster.log().matches("there is no high-water file \"idgen/clock\" yet").count();
    let before = told(&cluster);
    let first = next(&mut client);
    assert_after(&seen, &[first]);
    let lead_ms = time_ms(first) - clock_ms(&mut client);
    // The last checkpoint's time is known to the second.
    assert!(lead_ms <= 1000, "ids begin at the clock, not {lead_ms} ms ahead of it");
    assert_eq!(told(&cluster), before + 1, "the log says so");
    assert!(time_ms(first) < mark_ms(&cluster));
    assert_eq!(newest_record(&cluster).record.turn, 1);
    cluster.kill9_postmaster();
    cluster.start_again();
    assert!(next(&mut cluster.client()) > first);
}

/// No trace before it is needed, and then one line in the log and the data directory's mode.
#[test]
fn the_first_start() {
    for mode in [0o700, 0o750] {
        let cluster = Cluster::builder().conf("idgen.worker_id", "5").start();
        cluster.stop(Stop::Fast);
        set_mode(&cluster.data_dir(), mode);
        cluster.start_again();
        let nothing = |when: &str| {
            for name in ["idgen", "idgen.tmp"] {
                assert!(!cluster.data_dir().join(name).exists(), "{name} is there {when}");
            }
        };
        nothing("after a start");
        cluster.execute("CREATE EXTENSION idgen");
        let mut client = cluster.client();
        nothing("after CREATE EXTENSION");
        assert_decoding_works(&mut client);
        for sql in [
            "SELECT * FROM snowflake_layout()",
            "SELECT * FROM idgen.stat_snowflake",
            "SELECT * FROM idgen.stat_clock",
            "SELECT idgen.status()",
            "SELECT idgen.reset_stats()",
            "SELECT snowflake_floor(now()), snowflake_ceil(now())",
        ] {
            client.simple_query(sql).unwrap();
            nothing(sql);
        }
        drop(client);
        cluster.restart();
        let told = || cluster.log().matches("there is no high-water file \"idgen/clock\" yet").count();
        nothing("after a restart");
        let mut client = cluster.client();
        let drawn = [next(&mut client), next(&mut cluster.client())];
        assert_increasing(&drawn);
        assert_eq!(told(), 1, "{}", cluster.log());
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode_of(&directory(&cluster)), mode);
        assert_eq!(mode_of(&file(&cluster)), mode & 0o666);
        assert!(!cluster.data_dir().join("idgen.tmp").exists());
        cluster.restart();
        assert!(next(&mut cluster.client()) > drawn[1]);
        assert_eq!(told(), 1);
    }
}

/// What a crash in the middle of making it has left.
#[test]
fn a_directory_that_was_not_finished() {
    let cluster = start(Cluster::builder());
    let unfinished = cluster.data_dir().join("idgen.tmp");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("clock"), "half").unwrap();
    fs::write(unfinished.join("other"), "").unwrap();
    for path in [&unfinished, &unfinished.join("clock"), &unfinished.join("other")] {
        give_to_server(&cluster, path);
    }
    next(&mut cluster.client());
    assert!(!unfinished.exists());
    assert_eq!(newest_record(&cluster).record.turn, 1);
    assert_eq!(fs::read_dir(directory(&cluster)).unwrap().count(), 1);
}

/// Under a running server, which knows the mark: it makes the file anew.
#[test]
fn a_file_that_is_removed_from_a_running_server() {
    let (cluster, mut seen) = stopped(Cluster::builder());
    cluster.start_again();
    let mut client = cluster.client();
    seen.push(next(&mut client));
    fs::remove_dir_all(directory(&cluster)).unwrap();
    cluster.wait_for(PATIENCE, "a new file", || {
        seen.push(next(&mut client));
        file(&cluster).exists()
    });
    assert!(check(&mut client, "mark").0);
    assert!(newest_record(&cluster).record.mark_ms > time_ms(seen[seen.len() - 1]));
    cluster.kill9_postmaster();
    cluster.start_again();
    assert_after(&seen, &[next(&mut cluster.client())]);
}
