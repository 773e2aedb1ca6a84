//! Dumps of leases have the definitions but no terms, and no token repeats after a restore. pg_upgrade keeps everything.

use idgen_testkit::lease::{acquire, assert_held, take_if_free, term};
use idgen_testkit::sql::{column, execute, value};
use idgen_testkit::{Builder, Cluster, Stop, run};

fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min")
}

#[test]
fn restored_database_has_the_lease_definitions_and_no_terms() {
    let (cluster, [mut client]) = builder().start_with_clients();
    execute(
        &mut client,
        "CREATE ROLE definer;
         GRANT EXECUTE ON FUNCTION lease_define TO definer;
         SET ROLE definer;
         SELECT lease_define('a', slots => 3, ttl => '5 min', lock_delay => '7 s', first_slot => 100, notify => true);
         RESET ROLE;
         CREATE TABLE guarded (n int);
         CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION lease_guard('a')",
    );
    let token = acquire(&mut client, "'a', ttl => '1 day'").token;
    execute(&mut client, &format!("BEGIN; SELECT lease_fence('a', {token}); INSERT INTO guarded VALUES (1); COMMIT"));
    acquire(&mut client, "'bound', bind_session => true");

    let file = cluster.data_dir().with_file_name("dump.sql");
    run(cluster.program("pg_dump").args(["-d", "postgres", "-f"]).arg(&file));
    let highest = acquire(&mut client, "'a', ttl => '1 day'").token;
    cluster.execute("CREATE DATABASE restored");
    run(cluster.program("psql").args(["-d", "restored", "--set=ON_ERROR_STOP=1", "-f"]).arg(&file));

    let mut restored = cluster.client_in("restored");
    let definition = "SELECT definition::text FROM idgen.lease_definition AS definition";
    let defined: String = value(&mut client, definition);
    assert_eq!(value::<String>(&mut restored, definition), defined);
    assert!(defined.contains("(a,3,00:05:00,00:00:07,definer,100,t)"), "{defined}");
    assert_eq!(value::<i64>(&mut restored, "SELECT count(*) FROM idgen.lease"), 0);
    assert_eq!(value::<i32>(&mut restored, "SELECT n FROM guarded"), 1);
    // Databases are independent, also under the same names.
    for name in ["a", "bound"] {
        let next = take_if_free(&mut restored, name).expect("the lease is free");
        assert!(next > highest, "{name}: {next} after {highest}");
    }
    assert_held(&mut client, "bound");
    assert_held(&mut restored, "bound");
}

#[test]
fn pg_upgrade_keeps_the_terms_of_leases() {
    let [old, new] = [builder().start_with_extension(), builder().new_system_identifier().start()];
    let mut client = old.client();
    execute(&mut client, "SELECT lease_define('defined', slots => 2, ttl => '1 hour')");
    acquire(&mut client, "'defined'");
    acquire(&mut client, "'bound', ttl => '1 hour', bind_session => true");
    let rows =
        "SELECT lease::text FROM idgen.lease UNION ALL SELECT d::text FROM idgen.lease_definition AS d ORDER BY 1";
    let before: Vec<String> = column(&mut client, rows);
    drop(client);
    old.stop(Stop::Fast);
    new.stop(Stop::Fast);
    let bin = new.program("postgres").get_program().to_owned();
    let bin = std::path::Path::new(&bin).parent().expect("a program is in a directory");
    // pg_upgrade starts both servers, with sockets in its working directory.
    run(new.program("pg_upgrade").arg("-b").arg(bin).arg("-d").arg(old.data_dir()).arg("-D").arg(new.data_dir()));

    new.start_again();
    let mut client = new.client();
    assert_eq!(column::<String>(&mut client, rows), before);
    assert_held(&mut client, "bound");
    let bound = term(&mut client, "bound").token;
    let next = take_if_free(&mut client, "defined").expect("the second slot is free");
    assert!(next > bound, "{next} after {bound}");
    assert_eq!(take_if_free(&mut client, "defined"), None);
}
