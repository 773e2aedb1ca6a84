//! Servers that issue no ids: standbys, and those that do not preload the library.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, expect_error};
use postgres::error::SqlState;

use crate::{decoded, text};

#[test]
fn standby_without_preload_decodes_and_notices_changes_smoke() {
    let primary = Cluster::builder().preload(false).start_with_extension();
    primary.execute("SELECT public_id_define('ord')");
    let standby = primary.standby();
    let (mut here, mut there) = (primary.client(), standby.client());
    let short = text(&mut here, "ord", 7);
    assert_eq!(text(&mut there, "ord", 7), short);
    assert_eq!(decoded(&mut there, "ord", &short), Some(7));
    for change in ["define('usr')", "rotate('ord', 'long')", "drop('ord')", "grant('ord', 'public')"] {
        let error =
            expect_error(&mut there, &format!("SELECT public_id_{change}"), SqlState::READ_ONLY_SQL_TRANSACTION.code());
        assert!(error.message().contains("during recovery"), "{change}: {}", error.message());
    }

    execute(&mut here, "SELECT public_id_rotate('ord', 'long')");
    standby.wait_until_replayed(&primary);
    let long = text(&mut there, "ord", 7);
    assert_eq!(long, text(&mut here, "ord", 7));
    assert_eq!([decoded(&mut there, "ord", &short), decoded(&mut there, "ord", &long)], [Some(7); 2]);
    execute(&mut here, "SELECT public_id_retire('ord', 1)");
    standby.wait_until_replayed(&primary);
    assert_eq!([decoded(&mut there, "ord", &short), decoded(&mut there, "ord", &long)], [None, Some(7)]);

    standby.promote();
    assert_eq!(text(&mut there, "ord", 7), long);
    execute(&mut there, "SELECT public_id_rotate('ord')");
    assert_eq!(decoded(&mut there, "ord", &long), Some(7));
}
