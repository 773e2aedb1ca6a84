//! A base backup that is restored into the directory of its origin. Server, timeline, database and directory stay the same.

use idgen_testkit::Stop;
use idgen_testkit::sql::{execute, expect_error, value};

use super::{acquire, assert_apart, builder, define_pool, release, renew, renewal};

const TIMELINE: &str = "SELECT timeline_id FROM pg_control_checkpoint()";

#[test]
fn backup_restored_in_place_grants_no_id_time_again_however_its_recovery_ends() {
    for shuts_down in [false, true] {
        let cluster = builder().start_with_extension();
        define_pool(&cluster);
        let mut client = cluster.client();
        let mut first = acquire(&mut client);
        let backup = cluster.base_backup();
        // The backup lacks everything from here on.
        renew(&mut client, &mut first, "14 s");
        let second = acquire(&mut client);
        cluster.stop(Stop::Immediate);
        cluster.restore_in_place(&backup);
        if shuts_down {
            cluster.recover_and_shut_down();
        }
        cluster.start_again();

        let mut client = cluster.client();
        assert_eq!(value::<i32>(&mut client, TIMELINE), 1);
        release(&mut client, &first);
        let (third, fourth) = (acquire(&mut client), acquire(&mut client));
        assert_apart(&[&first, &second, &third, &fourth]);
        expect_error(&mut client, &renewal(first.token, "10 s"), "55000");
        // The next start of the restored server interrupts nothing.
        cluster.restart();
        let mut client = cluster.client();
        let since = "SELECT since::text FROM idgen.worker_history";
        let since_before: String = value(&mut client, since);
        let mut fifth = acquire(&mut client);
        renew(&mut client, &mut fifth, "10 s");
        assert_apart(&[&first, &second, &third, &fourth, &fifth]);
        assert_eq!(value::<String>(&mut client, since), since_before);
    }
}

/// The rows of 0.14.0 do not name the backup that their directory was restored from.
#[test]
fn rows_of_an_earlier_release_do_not_interrupt_the_history_of_a_restored_server() {
    let origin = builder().start_with_extension();
    define_pool(&origin);
    let cluster = origin.copy();
    origin.stop(Stop::Immediate);
    let mut client = cluster.client();
    let mut first = acquire(&mut client);
    execute(&mut client, "UPDATE idgen.worker_history SET place = split_part(place, ' ', 1)");
    renew(&mut client, &mut first, "10 s");
    acquire(&mut client);
    let is_updated = "SELECT since = '-infinity' AND place LIKE '% %' FROM idgen.worker_history";
    assert!(value::<bool>(&mut client, is_updated));
}
