//! A file that was lost, damaged, swapped or made unreadable while the server was down: the server starts and decodes ids,
//! but generates none that could repeat.

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

/// A stopped server that has issued ids and written both records of the file. Returns the ids.
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

/// Makes the server the owner of a path.
fn chown_to_server(cluster: &Cluster, path: &Path) {
    let data = fs::metadata(cluster.data_dir()).unwrap();
    chown(path, Some(data.uid()), Some(data.gid())).unwrap();
}

/// One way to damage the file, and the error that follows.
struct Damage {
    name: &'static str,
    code: &'static str,
    words: &'static str,
    damage: fn(&Cluster),
    /// Repairs the file, given its original bytes.
    repair: fn(&Cluster, &[u8]),
}

/// For each case, damages the file of the stopped server, asserts that the server starts but generates no ids, repairs the
/// file under the running server, and asserts that ids continue.
fn assert_no_ids_until_repaired(cases: &[Damage]) {
    let (cluster, mut seen) = stopped(Cluster::builder());
    for (n, case) in cases.iter().enumerate() {
        // Shown if an assertion fails.
        println!("{}", case.name);
        let whole = bytes(&cluster);
        (case.damage)(&cluster);
        cluster.start_again();
        let assert_refuses = || {
            let mut client = cluster.client();
            for _ in 0..2 {
                let error = assert_no_generation(&mut client, case.code);
                assert!(error.message().contains(case.words), "{error:?}");
                assert_decoding_works(&mut client);
                assert_eq!(value::<i64>(&mut client, "SELECT count(last_id) FROM idgen.stat_snowflake"), 0);
            }
            client
        };
        let mut client = assert_refuses();
        if n == 0 {
            // Neither a clean shutdown nor a crash overwrites the damage.
            cluster.restart();
            assert_refuses();
            cluster.kill9_postmaster();
            cluster.start_again();
            client = assert_refuses();
        }
        (case.repair)(&cluster, &whole);
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
    chown_to_server(cluster, &file(cluster));
}

fn aside(cluster: &Cluster) -> PathBuf {
    cluster.data_dir().join("aside")
}

/// Moves the original directory back, in place of its substitute.
fn move_back(cluster: &Cluster, _: &[u8]) {
    fs::remove_file(directory(cluster)).unwrap();
    fs::rename(aside(cluster), directory(cluster)).unwrap();
}

#[test]
fn lost_or_damaged_file_stops_generation_until_repaired() {
    let damaged =
        |name, damage| Damage { name, code: "XX001", words: "has no intact record", damage, repair: write_back };
    assert_no_ids_until_repaired(&[
        Damage {
            name: "deleted",
            code: "58P01",
            words: "missing",
            damage: |cluster| fs::remove_file(file(cluster)).unwrap(),
            repair: write_back,
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
fn other_object_in_place_of_the_file_stops_generation_until_repaired() {
    assert_no_ids_until_repaired(&[
        Damage {
            name: "a directory instead of the file",
            code: "58030",
            words: "directory",
            damage: |cluster| {
                fs::remove_file(file(cluster)).unwrap();
                fs::create_dir(file(cluster)).unwrap();
                chown_to_server(cluster, &file(cluster));
            },
            repair: |cluster, whole| {
                fs::remove_dir(file(cluster)).unwrap();
                write_back(cluster, whole);
            },
        },
        Damage {
            name: "a file instead of the directory",
            code: "58030",
            words: "Not a directory",
            damage: |cluster| {
                fs::rename(directory(cluster), aside(cluster)).unwrap();
                fs::write(directory(cluster), "").unwrap();
                chown_to_server(cluster, &directory(cluster));
            },
            repair: move_back,
        },
        Damage {
            // A link to a file system that is not mounted must not look like a first start.
            name: "a dangling link instead of the directory",
            code: "58030",
            words: "",
            damage: |cluster| {
                fs::rename(directory(cluster), aside(cluster)).unwrap();
                symlink(cluster.data_dir().join("elsewhere"), directory(cluster)).unwrap();
            },
            repair: move_back,
        },
    ]);
}

#[test]
fn inaccessible_file_stops_generation_until_repaired() {
    let denied = |name, damage, repair| Damage { name, code: "58030", words: "Permission denied", damage, repair };
    assert_no_ids_until_repaired(&[
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

/// The server writes only the file, so its directory need not be writable.
#[test]
fn read_only_directory_does_not_stop_generation() {
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
fn file_of_another_server_stops_generation() {
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
        // The DETAIL shows the origin of the file.
        assert!(error.detail().is_some_and(|detail| detail.contains(&identifier.to_string())), "{error:?}");
        assert_decoding_works(&mut client);
        drop(client);
        cluster.restart();
    }
    assert_eq!(bytes(&cluster), theirs, "the other server's file is unchanged");
    let mut client = cluster.client();
    assert_no_generation(&mut client, "XX001");
    write_back(&cluster, &whole);
    assert_after(&seen, &[next(&mut client)]);
}

/// The last resort that the HINT names.
#[test]
fn removing_the_directory_resumes_generation() {
    let (cluster, seen) = stopped(Cluster::builder());
    truncate(&cluster, 0);
    cluster.start_again();
    let mut client = cluster.client();
    let error = assert_no_generation(&mut client, "XX001");
    assert!(error.hint().unwrap().contains("remove the directory \"idgen\""), "{error:?}");
    fs::remove_dir_all(directory(&cluster)).unwrap();
    let logged = |cluster: &Cluster| cluster.log().matches("there is no high-water file \"idgen/clock\" yet").count();
    let before = logged(&cluster);
    let first = next(&mut client);
    assert_after(&seen, &[first]);
    let lead_ms = time_ms(first) - clock_ms(&mut client);
    // The label stands in for the mark: three moves of the mark.
    assert!(lead_ms <= 16_500, "ids begin {lead_ms} ms ahead of the clock");
    assert_eq!(logged(&cluster), before + 1, "the log mentions it");
    assert!(time_ms(first) < mark_ms(&cluster));
    assert!(newest_record(&cluster).record.turn <= 2);
    cluster.kill9_postmaster();
    cluster.start_again();
    assert!(next(&mut cluster.client()) > first);
}

/// The file does not exist before the first id. Its creation logs one line, and it gets the data directory's mode.
#[test]
fn first_id_creates_the_file() {
    for mode in [0o700, 0o750] {
        let cluster = Cluster::builder().conf("idgen.worker_id", "5").start();
        cluster.stop(Stop::Fast);
        set_mode(&cluster.data_dir(), mode);
        cluster.start_again();
        let nothing = |when: &str| {
            for name in ["idgen", "idgen.tmp"] {
                assert!(!cluster.data_dir().join(name).exists(), "{name} exists {when}");
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
        let logged = || cluster.log().matches("there is no high-water file \"idgen/clock\" yet").count();
        nothing("after a restart");
        let mut client = cluster.client();
        let drawn = [next(&mut client), next(&mut cluster.client())];
        assert_increasing(&drawn);
        assert_eq!(logged(), 1, "{}", cluster.log());
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode_of(&directory(&cluster)), mode);
        assert_eq!(mode_of(&file(&cluster)), mode & 0o666);
        assert!(!cluster.data_dir().join("idgen.tmp").exists());
        cluster.restart();
        assert!(next(&mut cluster.client()) > drawn[1]);
        assert_eq!(logged(), 1);
    }
}

/// A crash during the creation leaves a temporary directory.
#[test]
fn unfinished_directory_is_replaced() {
    let cluster = start(Cluster::builder());
    let unfinished = cluster.data_dir().join("idgen.tmp");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("clock"), "half").unwrap();
    fs::write(unfinished.join("other"), "").unwrap();
    for path in [&unfinished, &unfinished.join("clock"), &unfinished.join("other")] {
        chown_to_server(&cluster, path);
    }
    next(&mut cluster.client());
    assert!(!unfinished.exists());
    assert!(newest_record(&cluster).record.turn <= 2);
    assert_eq!(fs::read_dir(directory(&cluster)).unwrap().count(), 1);
}

/// The running server knows the mark and creates the file again, whatever else is in its directory.
#[test]
fn file_removed_under_a_running_server_is_created_again() {
    let (cluster, mut seen) = stopped(Cluster::builder());
    let removals: [fn(&Cluster); 3] = [
        |cluster| fs::remove_dir_all(directory(cluster)).unwrap(),
        |cluster| fs::remove_file(file(cluster)).unwrap(),
        |cluster| fs::rename(file(cluster), directory(cluster).join("clock.old")).unwrap(),
    ];
    for remove in removals {
        cluster.start_again();
        let mut client = cluster.client();
        seen.push(next(&mut client));
        remove(&cluster);
        cluster.wait_for(PATIENCE, "a new file", || {
            seen.push(next(&mut client));
            file(&cluster).exists()
        });
        assert!(check(&mut client, "mark").0);
        assert!(newest_record(&cluster).record.mark_ms > time_ms(seen[seen.len() - 1]));
        cluster.kill9_postmaster();
        cluster.start_again();
        let id = next(&mut cluster.client());
        assert_after(&seen, &[id]);
        seen.push(id);
        cluster.stop(Stop::Fast);
    }
}
